-- note_feed: note a feed before its first event, if there may be one more.
--
-- KEYS[1]  ZSET  names of feeds, as spelled in keys, by the time they were made
-- ARGV[1]  str   its name
-- ARGV[2]  int   most feeds
--
-- Returns   n  number of feeds that are noted, this one among them
--           0  there are as many feeds as there may be; nothing written

-- Include: time
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return redis.call('ZCARD', KEYS[1])

-- register_run: note a run before its record is made, so that none is without an owner.
--
-- KEYS[1]  ZSET  ids of runs by the time they began
-- ARGV[1]  str   the run's id
-- ARGV[2]  int   most runs, 0 for any number
--
-- Returns  int  server ms
--            0  there are as many runs as there may be; nothing written

-- Include: time
local most = tonumber(ARGV[2])
if most > 0 and redis.call('ZCARD', KEYS[1]) >= most and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return now

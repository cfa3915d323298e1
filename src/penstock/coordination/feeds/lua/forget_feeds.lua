-- forget_feeds: take feeds that are gone out of the registry.
--
-- Flags: allow-oom  it makes room
--
-- KEYS[1]  ZSET  names of feeds, as spelled in keys, by the time they were made
-- ARGV[1]  int   ms: what was noted later than so long ago may be about to get its first event
-- ARGV[2..]  str  names of feeds
--
-- Returns  int  how many left

-- Include: time
local gone = 0
for i = 2, #ARGV do
  local noted = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if noted and noted + ARGV[1] <= now then gone = gone + redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return gone

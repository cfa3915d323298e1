-- forget_runs: take runs whose records are gone out of the registry.
--
-- Flags: allow-oom  it makes room
--
-- KEYS[1]  ZSET  ids of runs by the time they began
-- ARGV[1]  int   ms: who was registered later than so long ago may be about to make a record
-- ARGV[2..]  str  ids of runs
--
-- Returns  int  how many left

-- Include: time
local gone = 0
for i = 2, #ARGV do
  local began = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if began and began + ARGV[1] <= now then gone = gone + redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return gone

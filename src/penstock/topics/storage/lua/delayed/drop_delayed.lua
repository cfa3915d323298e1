-- drop_delayed: forget delayed messages that wait in another partition by now.
--
-- Unless the topic has grown since: then they may have come back, and who knows of it sees to them.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  ids of messages not yet due
-- KEYS[2]  HASH  messages not yet due
-- KEYS[3]  ZSET  names of large bodies
-- KEYS[4]  HASH  the partition's counters
-- ARGV[1]  str   what keys of large bodies begin with; a name completes the key
-- ARGV[2]  int   generation up to which the caller knows the markers of the partitions
-- ARGV[3..]  str  for each its id and the name of its large body, '' for none
--
-- Returns  int  how many were here; -2 if the topic has grown since, and nothing was written

if redis.call('HEXISTS', KEYS[4], 'barrier:' .. string.format('%.0f', ARGV[2] + 1)) == 1 then return -2 end
local dropped = 0
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then
    redis.call('UNLINK', ARGV[1] .. ARGV[i + 1])
    redis.call('ZREM', KEYS[3], ARGV[i + 1])
  end
  redis.call('HDEL', KEYS[2], ARGV[i])
  dropped = dropped + redis.call('ZREM', KEYS[1], ARGV[i])
end
return dropped

-- drop_delayed: forget delayed messages that wait in another partition by now.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  ids of messages not yet due
-- KEYS[2]  HASH  messages not yet due
-- KEYS[3]  ZSET  names of large bodies
-- ARGV[1]  str   what keys of large bodies begin with; a name completes the key
-- ARGV[2..]  str  for each its id and the name of its large body, '' for none
--
-- Returns  int  how many were here

local dropped = 0
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then
    redis.call('UNLINK', ARGV[1] .. ARGV[i + 1])
    redis.call('ZREM', KEYS[3], ARGV[i + 1])
  end
  redis.call('HDEL', KEYS[2], ARGV[i])
  dropped = dropped + redis.call('ZREM', KEYS[1], ARGV[i])
end
return dropped

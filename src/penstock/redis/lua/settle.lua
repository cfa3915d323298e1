-- settle: acknowledge messages, if the caller still owns the partition.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- KEYS[3]  HASH    from group to the id up to which all is settled
-- KEYS[4]  ZSET    the group's retries
-- KEYS[5]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  int     how many of the ids, the first ones, have failed before
-- ARGV[4..]  str   ids, the highest last
--
-- Returns  int  how many were pending until now
--          -1   the partition is not the caller's any more; nothing written

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local acked = redis.call('XACK', KEYS[2], ARGV[1], unpack(ARGV, 4))
if ARGV[3] ~= '0' then
  redis.call('ZREM', KEYS[4], unpack(ARGV, 4, 3 + ARGV[3]))
  redis.call('HDEL', KEYS[5], unpack(ARGV, 4, 3 + ARGV[3]))
end
local settled = ARGV[#ARGV]
local lowest = redis.call('XPENDING', KEYS[2], ARGV[1])[2]
if lowest then
  local ms, seq = string.match(lowest, '^(%d+)-(%d+)$')
  if seq == '0' then
    settled = string.format('%.0f-18446744073709551615', ms - 1)
  else
    settled = string.format('%s-%.0f', ms, seq - 1)
  end
end
redis.call('HSET', KEYS[3], ARGV[1], settled)
return acked

-- ack_messages: acknowledge messages, if the caller still owns the partition.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every message passes here; keys are checked where they are read or written
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

-- Include: types
local epoch = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(epoch) == 'table' then return fault_in('HASH', KEYS[1]) end
if epoch ~= ARGV[2] then return -1 end
local fault = fault_in('HASH', KEYS[3])
  or ARGV[3] ~= '0' and (fault_in('ZSET', KEYS[4]) or fault_in('HASH', KEYS[5]))
if fault then return fault end
local acked = redis.pcall('XACK', KEYS[2], ARGV[1], unpack(ARGV, 4))
if type(acked) == 'table' then return fault_in('STREAM', KEYS[2]) or acked end
local pending = redis.pcall('XPENDING', KEYS[2], ARGV[1])
if pending.err then return pending end  -- there is no such group, so nothing was acknowledged
if ARGV[3] ~= '0' then
  redis.call('ZREM', KEYS[4], unpack(ARGV, 4, 3 + ARGV[3]))
  redis.call('HDEL', KEYS[5], unpack(ARGV, 4, 3 + ARGV[3]))
end
local settled = ARGV[#ARGV]
local lowest = pending[2]
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

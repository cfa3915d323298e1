-- begin: count an attempt at messages before it is made.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every message passes here; what it reads first, or writes, is looked at
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- KEYS[3]  ZSET    the group's retries
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  str     consumer under which messages are pending
-- ARGV[4..]  str   id, number of the attempt; the next id, …
--
-- Returns  list  the ids that may be begun; one that is missing is not pending any more
--          -1    the partition is not the caller's any more; nothing written

-- Include: types
local epoch = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(epoch) == 'table' then return fault_in('HASH', KEYS[1]) end
if epoch ~= ARGV[2] then return -1 end
local fault = fault_in('ZSET', KEYS[3])
if fault then return fault end
local begun = {}
for i = 4, #ARGV, 2 do
  local claimed = redis.pcall('XCLAIM', KEYS[2], ARGV[1], ARGV[3], 0, ARGV[i],
    'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  -- Whether there is such a stream and group shows with the first.
  if claimed.err then return fault_in('STREAM', KEYS[2]) or claimed end
  redis.call('ZREM', KEYS[3], ARGV[i])
  if claimed[1] then begun[#begun + 1] = claimed[1] end
end
return begun

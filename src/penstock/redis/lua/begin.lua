-- begin: count an attempt at messages before it is made.
--
-- Flags: allow-oom  a full server must drain
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

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local begun = {}
for i = 4, #ARGV, 2 do
  local claimed = redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[3], 0, ARGV[i],
    'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  redis.call('ZREM', KEYS[3], ARGV[i])
  if claimed[1] then begun[#begun + 1] = claimed[1] end
end
return begun

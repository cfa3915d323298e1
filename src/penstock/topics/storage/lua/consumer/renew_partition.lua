-- renew_partition: hold a partition for longer, if it is still the caller's.
--
-- Flags: allow-oom  a full server must not take every lease away
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- KEYS[3]  STREAM  the owner's first fence; of another one the number differs
-- ARGV[1]  str     group
-- ARGV[2]  str     the owner
-- ARGV[3]  int     the owner's epoch
-- ARGV[4]  int     ms for which the lease holds
--
-- Returns  1  held
--          0  it is not the caller's any more; nothing written

local epoch, number = unpack(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence'))
if epoch ~= ARGV[3] then return 0 end
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then return 0 end
-- A lease that ran out and was not taken is revived: the epoch is still ours.
-- The fence first: before version 7, a full server refuses a script whose first write needs memory.
local fence = number and (string.gsub(KEYS[3], '%d+$', number)) or KEYS[3]
local fault = fault_in('STREAM', fence)
if fault then return fault end
local is_fenced = redis.call('PEXPIRE', fence, ARGV[4]) == 1
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
if not is_fenced then
  redis.call('XGROUP', 'CREATE', fence, ARGV[1], '$', 'MKSTREAM')
  redis.call('PEXPIRE', fence, ARGV[4])
end
return 1

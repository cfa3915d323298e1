-- renew: hold a partition for longer, if it is still the caller's.
--
-- Flags: allow-oom  a full server must not take every lease away
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group
-- KEYS[3]  STREAM  the owner's fence
-- ARGV[1]  str     group
-- ARGV[2]  str     the owner
-- ARGV[3]  int     the owner's epoch
-- ARGV[4]  int     ms for which the lease holds
--
-- Returns  1  held
--          0  it is not the caller's any more; nothing written

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then return 0 end
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then return 0 end
-- A lease that ran out while nobody wanted it is revived: the epoch is still ours.
-- The fence first: before version 7, a full server refuses a script whose first write needs memory.
local is_fenced = redis.call('PEXPIRE', KEYS[3], ARGV[4]) == 1
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4])
if not is_fenced then
  redis.call('XGROUP', 'CREATE', KEYS[3], ARGV[1], '$', 'MKSTREAM')
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
end
return 1

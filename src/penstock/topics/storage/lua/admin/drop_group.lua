-- drop_group: forget a group in one partition.
--
-- Flags: allow-oom  it frees memory
-- Unchecked: the keys of the group alone go, whatever is in them
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- KEYS[3]  HASH    from group to the id up to which all is settled
-- KEYS[4]  STRING  the lease
-- KEYS[5]  ZSET    the group's retries
-- KEYS[6]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  str     what fences of this group begin with; a number completes the key
--
-- Returns  1  it was known here
--          0  it was not

-- Include: types
local fault = fault_in('STREAM', KEYS[1]) or fault_in('HASH', KEYS[2]) or fault_in('HASH', KEYS[3])
if fault then return fault end
local known = 0
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6])
redis.call('HDEL', KEYS[3], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 1 then
  known = redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
end
-- An earlier version does not know renewed fences: either may be there, or a number without a group.
for _, number in pairs(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence')) do
  if number then redis.call('DEL', ARGV[2] .. number) end
end
if redis.call('HDEL', KEYS[2], ARGV[1], ARGV[1] .. ':fence') > 0 then known = 1 end
return known

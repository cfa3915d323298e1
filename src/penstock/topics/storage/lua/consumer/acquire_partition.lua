-- acquire_partition: take a partition without an owner, under the next epoch.
--
-- A lease holds as long as it exists, from any program: consumers of the
-- Java library have leases of their own length. Two cannot end by themselves: one without TTL, whose
-- owner died between SETNX and EXPIRE, and one of ours that outlives its TTL, because the server's
-- clock was set back. The caller has watched them.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- ARGV[1]  str     group
-- ARGV[2]  str     who takes it
-- ARGV[3]  int     ms for which the lease holds
-- ARGV[4]  str     what fences of this group begin with; a number completes the key
-- ARGV[5]  str     an owner whose lease was seen unchanged for too long, '' for none
--
-- Returns  int   the new epoch
--           0    it has an owner
--          -1    the group is not registered here

local epoch, number = unpack(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence'))
if not epoch then return -1 end
-- Include: fences
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then
  if owner ~= ARGV[5] then return 0 end
  local left = redis.call('PTTL', KEYS[1])
  local is_ours = stands(ARGV[4] .. epoch) or (number and stands(ARGV[4] .. number))
  if left >= 0 and (left <= tonumber(ARGV[3]) or not is_ours) then return 0 end
end
-- Never an epoch that was there before, even if the group, the topic or the server began again.
local time = redis.call('TIME')
local next = math.max(next_number(epoch, number), time[1] * 1000000 + time[2])
local fence = ARGV[4] .. string.format('%.0f', next)
local fault = fault_in('STREAM', fence)
if fault then return fault end
tear_down_all(ARGV[4], ARGV[1], epoch, number)
if number then redis.call('HDEL', KEYS[2], ARGV[1] .. ':fence') end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', next))
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('XGROUP', 'CREATE', fence, ARGV[1], '$', 'MKSTREAM')
redis.call('PEXPIRE', fence, ARGV[3])
return next

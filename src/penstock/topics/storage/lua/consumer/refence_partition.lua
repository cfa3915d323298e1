-- refence_partition: replace the owner's fence, so that no read sent until now can deliver a message.
--
-- Reads that wait on the server fail, and so do those that arrive later, on whichever connection. The
-- epoch stays as it is. The lease is renewed, so that it does not end before the new fence: an
-- earlier version that takes the partition then does not know of this one.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- ARGV[1]  str     group
-- ARGV[2]  str     the owner
-- ARGV[3]  int     the owner's epoch
-- ARGV[4]  str     what fences of this group begin with; a number completes the key
-- ARGV[5]  int     number of the new fence, above that of the last
-- ARGV[6]  int     ms for which fence and lease hold
--
-- Returns  1  replaced, now or by an earlier call
--          0  the partition is not the caller's any more; nothing written

local epoch, number = unpack(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence'))
if epoch ~= ARGV[3] then return 0 end
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then return 0 end
if tonumber(number or epoch) >= tonumber(ARGV[5]) then return 1 end
local fence = ARGV[4] .. ARGV[5]
local fault = fault_in('STREAM', fence)
if fault then return fault end
-- Include: fences
tear_down_all(ARGV[4], ARGV[1], epoch, number)
redis.call('HSET', KEYS[2], ARGV[1] .. ':fence', ARGV[5])
redis.call('XGROUP', 'CREATE', fence, ARGV[1], '$', 'MKSTREAM')
redis.call('PEXPIRE', fence, ARGV[6])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[6])
return 1

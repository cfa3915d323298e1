-- refence: replace the owner's fence, so that no read sent until now can deliver a message.
--
-- Reads that wait on the server fail, and so do those that arrive later, on whichever connection.
-- The lease and the epoch stay as they are.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  str     what fences of this group begin with; a number completes the key
-- ARGV[4]  int     number of the new fence, above that of the last
-- ARGV[5]  int     ms for which it stands unless it is renewed
--
-- Returns  1  replaced, now or by an earlier call
--          0  the partition is not the caller's any more; nothing written

local facts = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[1] .. ':fence')
if facts[1] ~= ARGV[2] then return 0 end
local last = facts[2] or facts[1]
if tonumber(last) >= tonumber(ARGV[4]) then return 1 end
local fault = fault_in('STREAM', ARGV[3] .. ARGV[4])
if fault then return fault end
-- Include: fences
tear_down(ARGV[3] .. last, ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1] .. ':fence', ARGV[4])
redis.call('XGROUP', 'CREATE', ARGV[3] .. ARGV[4], ARGV[1], '$', 'MKSTREAM')
redis.call('PEXPIRE', ARGV[3] .. ARGV[4], ARGV[5])
return 1

-- acquire: take a partition that nobody owns, under the next epoch.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group
-- ARGV[1]  str     group
-- ARGV[2]  str     who takes it
-- ARGV[3]  int     ms for which the lease holds
-- ARGV[4]  str     what fences of this group begin with; an epoch completes the key
-- ARGV[5]  str     an owner known to be dead, though its lease has not run out: the server's clock
--                  was set back; '' for none
--
-- Returns  int   the new epoch
--           0    somebody owns it
--          -1    the group is not registered here

local epoch = redis.call('HGET', KEYS[2], ARGV[1])
if not epoch then return -1 end
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[2] then
  if owner ~= ARGV[5] or redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[3]) then return 0 end
end
-- Never an epoch that was there before, even if the group, the topic or the server began anew.
local time = redis.call('TIME')
local next = math.max(epoch + 1, time[1] * 1000000 + time[2])
-- Before version 7 a read that waits does not notice that a key is gone, but that its group is;
-- and a full server takes further writes after one that needs no memory.
local last = ARGV[4] .. epoch
if redis.call('PEXPIRE', last, 1000) == 1 then
  redis.call('XGROUP', 'DESTROY', last, ARGV[1])
end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', next))
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local fence = ARGV[4] .. string.format('%.0f', next)
redis.call('XGROUP', 'CREATE', fence, ARGV[1], '$', 'MKSTREAM')
redis.call('PEXPIRE', fence, ARGV[3])
return next

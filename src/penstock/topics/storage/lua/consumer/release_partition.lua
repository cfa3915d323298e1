-- release_partition: give a partition up, and with it what was fetched but not begun.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- KEYS[3]  STREAM  the owner's first fence; of another one the number differs
-- KEYS[4]  STREAM  the partition's messages
-- ARGV[1]  str     group
-- ARGV[2]  str     the owner
-- ARGV[3]  int     the owner's epoch
-- ARGV[4]  str     consumer under which messages are pending
-- ARGV[5..]  str   ids fetched but not begun: no attempt is charged for them
--
-- Returns  1  given up
--          0  it was not the caller's any more; nothing written

local epoch, number = unpack(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence'))
if epoch ~= ARGV[3] then return 0 end
-- One call for many, since each has its price.
local MANY = 1000
for first = 5, #ARGV, MANY do
  local claim = {'XCLAIM', KEYS[4], ARGV[1], ARGV[4], 0,
    unpack(ARGV, first, math.min(first + MANY - 1, #ARGV))}
  for _, option in ipairs({'RETRYCOUNT', 0, 'JUSTID'}) do claim[#claim + 1] = option end
  local claimed = redis.pcall(unpack(claim))
  if claimed.err then return claimed end  -- the group is gone: the first call fails
end
if redis.call('GET', KEYS[1]) == ARGV[2] then redis.call('DEL', KEYS[1]) end
-- Include: fences
tear_down_all((string.gsub(KEYS[3], '%d+$', '')), ARGV[1], epoch, number)
-- The epoch ends with it: a renewal of the heartbeat thread that is still on its way is refused.
redis.call('HDEL', KEYS[2], ARGV[1] .. ':fence')
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', next_number(epoch, number)))
return 1

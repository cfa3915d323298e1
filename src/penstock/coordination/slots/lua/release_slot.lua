-- release_slot: release a slot or a ticket, and wake waiters.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  holders by the end of their lease; its name is the channel of the hint
-- KEYS[2]  ZSET  tickets of processes whose callers wait, in their order
-- KEYS[3]  HASH  from a ticket to the time until which it counts, and more about it
-- ARGV[1]  str   the holder; '' to look for a slot that the token may have
-- ARGV[2]  str   the token, or the ticket
--
-- Returns   1  a slot was given back before its lease had ended
--           0  the caller had none (any more)

-- Include: time
local holder = ARGV[1]
if holder == '' then
  for _, found in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if string.match(found, '^%d+:(.*)$') == ARGV[2] then holder = found end
  end
end
local ends = tonumber(redis.call('ZSCORE', KEYS[1], holder) or 0)
local freed = redis.call('ZREM', KEYS[1], holder) + redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[2], 'n:' .. ARGV[2], 'turn:' .. ARGV[2])
if freed > 0 and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.pcall('PUBLISH', KEYS[1], 'free')  -- where that is not allowed, they look by themselves
end
return ends > now and 1 or 0

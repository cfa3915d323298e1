-- declare_schedule: set the next tick of a name that is new, or that recurs in another way now.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   name
-- ARGV[2]  str   how it was declared when the caller looked; '' if it was not
-- ARGV[3]  str   how it is to be declared
-- ARGV[4]  int   its next tick
--
-- Returns   1  declared; if it is paused, it stays so
--           0  somebody else was faster; nothing was written

-- Include: time
-- Include: schedule
local name = ARGV[1]
if (redis.call('HGET', KEYS[2], declared_in(name)) or '') ~= ARGV[2] then return 0 end
local tick = redis.call('ZSCORE', KEYS[1], name)
if tick and ARGV[2] == ARGV[3] then return 0 end

redis.call('HSET', KEYS[2], declared_in(name), ARGV[3], seen_in(name), now)
if tick ~= 'inf' then redis.call('ZADD', KEYS[1], ARGV[4], name) end
return 1

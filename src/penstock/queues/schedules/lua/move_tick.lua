-- move_tick: set the next tick of a schedule, if it is at the tick the caller expects.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   name
-- ARGV[2]  str   its declaration
-- ARGV[3]  str   its next tick as the caller read it, 'inf' if it is paused
-- ARGV[4]  str   its new next tick, 'inf' to pause it
--
-- Returns   1  moved
--           0  its tick or declaration differs; nothing was written

-- Include: schedule
local name = ARGV[1]
if (redis.call('HGET', KEYS[2], declared_in(name)) or '') ~= ARGV[2] then return 0 end
if redis.call('ZSCORE', KEYS[1], name) ~= ARGV[3] then return 0 end
redis.call('ZADD', KEYS[1], ARGV[4], name)
return 1

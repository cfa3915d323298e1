-- declare_schedule: set the next tick of a schedule that is new or was declared differently.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   name
-- ARGV[2]  str   its declaration as the caller read it; '' if it had none
-- ARGV[3]  str   its new declaration
-- ARGV[4]  int   its next tick
--
-- Returns   1  declared; a paused schedule stays paused
--           0  its declaration has changed; nothing was written

-- Include: time
-- Include: schedule
local name = ARGV[1]
if (redis.call('HGET', KEYS[2], declared_in(name)) or '') ~= ARGV[2] then return 0 end
local tick = redis.call('ZSCORE', KEYS[1], name)
if tick and ARGV[2] == ARGV[3] then return 0 end

redis.call('HSET', KEYS[2], declared_in(name), ARGV[3], seen_in(name), now)
if tick ~= 'inf' then redis.call('ZADD', KEYS[1], ARGV[4], name) end
return 1

-- read_schedule: read one schedule of a queue.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   name
--
-- Returns  list  its next tick ('inf' if it is paused), its declaration, and 1 if a worker has
--                declared it recently, else 0; empty if there is none

-- Include: time
-- Include: schedule
local tick = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not tick then return {} end
local facts = redis.call('HMGET', KEYS[2], declared_in(ARGV[1]), seen_in(ARGV[1]))
return {tick, facts[1] or '', is_seen(facts[2], now) and 1 or 0}

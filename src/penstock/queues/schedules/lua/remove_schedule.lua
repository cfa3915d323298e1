-- remove_schedule: remove a schedule.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   name
--
-- Returns   2  removed; workers that declare it leave it removed until one of them restarts
--           1  removed; no worker has declared it recently
--           0  there is none

-- Servers before 7 let a script go on at maxmemory once it has written.
redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: schedule
local name = ARGV[1]
if redis.call('ZREM', KEYS[1], name) == 0 then return 0 end
local seen = tonumber(redis.call('HGET', KEYS[2], seen_in(name)) or 0)
redis.call('HDEL', KEYS[2], seen_in(name))
if now - seen < 3 * SEEN_MS then
  redis.call('HSET', KEYS[2], declared_in(name), '')
  return 2
end
redis.call('HDEL', KEYS[2], declared_in(name))
return 1

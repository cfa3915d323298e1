-- find_dead: give up the workers of a queue that have been silent for too long.
--
-- From then on they get and acknowledge nothing. A sign of life from the future is from before the
-- server's clock was set back: its time begins now. A worker that has been silent for too long itself
-- gives nobody up: see beat_queue.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- KEYS[2]  ZSET  dead workers of the queue whose claims are to be returned
-- ARGV[1]  int   ms of silence after which a worker is dead
-- ARGV[2]  str   the worker that asks, '' if it is none
--
-- Returns  list  all dead workers whose claims are to be returned

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: silence
local own = redis.call('ZSCORE', KEYS[1], ARGV[2])
if own and tonumber(own) <= now - ARGV[1] then begin_time_anew(KEYS[1], now) end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + ARGV[1], '+inf')) do
  redis.call('ZADD', KEYS[1], now, worker)
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1])) do
  redis.call('ZREM', KEYS[1], worker)
  redis.call('ZADD', KEYS[2], now, worker)
end
return redis.call('ZRANGE', KEYS[2], 0, 99)

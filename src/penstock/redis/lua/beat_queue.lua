-- beat_queue: give a sign of life to a queue.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- ARGV[1]  str   worker
--
-- Returns   1  noted
--           0  the worker was given up as dead; nothing written

redis.call('ZREM', KEYS[1], '')
-- Include: time
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return 1

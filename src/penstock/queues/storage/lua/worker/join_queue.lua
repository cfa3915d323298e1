-- join_queue: become a live worker of a queue.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- ARGV[1]  str   worker
--
-- Returns  int  the server's ms

redis.call('ZREM', KEYS[1], '')
-- Include: time
redis.call('ZADD', KEYS[1], now, ARGV[1])
return now

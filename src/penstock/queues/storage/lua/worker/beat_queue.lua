-- beat_queue: give a sign of life to a queue.
--
-- A worker whose last sign was too long ago, and that was not given up, goes on. The others get more
-- time only if none of them gave a sign meanwhile either.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   worker
-- ARGV[2]  int   ms of silence after which a worker is dead
-- ARGV[3]  int   longest time in ms for which the worker itself was paused since its last sign
--
-- Returns  int  1 if it is noted, 2 more if no process tends the queue, 4 more if a key of the queue is
--               of another type; 0 if the worker was given up as dead, and nothing is written

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: silence
return note_sign(KEYS[1], KEYS[2], ARGV[1], now, tonumber(ARGV[2]), tonumber(ARGV[3]))

-- beat_queue: give a sign of life to a queue.
--
-- If the worker's own last sign would have been too long ago, the server was away, or its clock was
-- set forward: nobody else could say more, so the time of all begins now.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- ARGV[1]  str   worker
-- ARGV[2]  int   ms of silence after which a worker is dead
--
-- Returns   1  noted
--           0  the worker was given up as dead; nothing written

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: silence
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not last then return 0 end
if tonumber(last) <= now - ARGV[2] then begin_time_anew(KEYS[1], now) end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return 1

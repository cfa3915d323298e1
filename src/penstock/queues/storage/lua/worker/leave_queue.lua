-- leave_queue: stop being a worker of a queue; what is still in hand is for the others, at once.
--
-- A worker that was given up as dead calls it as well: if the keys of the workers were deleted, its
-- claims would otherwise belong to no known worker.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  ZSET  dead workers of the queue whose claims are to be returned
-- KEYS[3]  HASH  the worker's claims
-- ARGV[1]  str   worker
--
-- Returns  int  how many jobs were still in hand

redis.call('ZREM', KEYS[1], '')
-- Include: time
local left = redis.call('HLEN', KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[1])
if left > 0 then redis.call('ZADD', KEYS[2], now, ARGV[1]) end
return left

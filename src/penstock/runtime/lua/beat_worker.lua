-- beat_worker: record the heartbeat of a worker, with its description.
--
-- Flags: allow-oom  a full server must not make every worker appear dead
--
-- KEYS[1]  ZSET  worker ids by last heartbeat in server ms
-- KEYS[2]  HASH  the worker
-- ARGV[1]  str   worker id
-- ARGV[2]  str   its description as JSON
-- ARGV[3]  int   ms of silence after which the worker's record expires
-- ARGV[4]  int   ms of silence after which its id is removed too
--
-- Returns  int  the server's time in ms

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[2], 'about', ARGV[2], 'beat_ms', now)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('ZADD', KEYS[1], now, ARGV[1])
-- Include: sweep
sweep_upto(KEYS[1], now - ARGV[4])
return now

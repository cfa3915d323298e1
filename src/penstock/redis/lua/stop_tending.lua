-- stop_tending: give up the lease of a queue's tender and wake a worker, whose process takes over.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH  the queue's state
-- KEYS[2]  LIST  the ring of fair lanes
-- ARGV[1]  str   the process that tended it
--
-- Returns  1  given up
--          0  another process tends it

redis.call('HDEL', KEYS[1], '')
-- Include: wakeup
if redis.call('HGET', KEYS[1], 'tender') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'tender', 'tended_until')
wake(KEYS[2], 1)
return 1

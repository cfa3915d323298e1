-- leave_limit: wait for a limit no longer.
--
-- KEYS[1]  ZSET  tickets of those who wait
-- KEYS[2]  HASH  what they want
-- ARGV[1]  str   ticket
--
-- Returns  int  1 if it was there

redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])

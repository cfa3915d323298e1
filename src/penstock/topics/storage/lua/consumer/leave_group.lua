-- leave_group: a consumer ends in good order.
--
-- KEYS[1]  ZSET  the group's consumers by last heartbeat in server ms
-- KEYS[2]  HASH  from consumer to its information
-- ARGV[1]  str   consumer
--
-- Returns  1  it was known
--          0  it was not

-- Without a version, the next who beats makes one.
redis.call('HDEL', KEYS[2], ARGV[1], ':version')
return redis.call('ZREM', KEYS[1], ARGV[1])

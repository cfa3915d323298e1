-- remove_worker: remove the record of a worker that ends in good order.
--
-- KEYS[1]  ZSET  worker ids by last heartbeat in server ms
-- KEYS[2]  HASH  the worker
-- ARGV[1]  str   worker id
--
-- Returns  1  it was known
--          0  it was not

redis.call('DEL', KEYS[2])
return redis.call('ZREM', KEYS[1], ARGV[1])

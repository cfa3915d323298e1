-- register_run: note a run before its record is made, so that none is without an owner.
--
-- KEYS[1]  ZSET  ids of runs by the time they began
-- ARGV[1]  str   the run's id
--
-- Returns  int  server ms

-- Include: time
redis.call('ZADD', KEYS[1], now, ARGV[1])
return now

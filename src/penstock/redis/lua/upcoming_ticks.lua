-- upcoming_ticks: tell which schedules of a queue have their next ticks around now.
--
-- KEYS[1]  ZSET  next ticks by name
-- ARGV[1]  int   the server's ms from which on
-- ARGV[2]  int   ms after now up to which
-- ARGV[3]  int   how many to pass over
-- ARGV[4]  int   most to tell of
--
-- Returns  list  the server's ms; then for each its name and its next tick

-- Include: time
local answer = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], now + ARGV[2], 'WITHSCORES',
  'LIMIT', ARGV[3], ARGV[4])
table.insert(answer, 1, now)
return answer

-- upcoming_ticks: list schedules of a queue whose next ticks are around now.
--
-- KEYS[1]  ZSET  next ticks by name
-- ARGV[1]  int   the server's ms from which on
-- ARGV[2]  int   ms after now up to which
-- ARGV[3]  int   offset
-- ARGV[4]  int   maximum number
--
-- Returns  list  the server's ms; then for each its name and its next tick

-- Include: time
local answer = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], now + ARGV[2], 'WITHSCORES',
  'LIMIT', ARGV[3], ARGV[4])
table.insert(answer, 1, now)
return answer

-- add_sorted: add members to a sorted set that lasts for a time.
--
-- KEYS[1]  ZSET  the set
-- ARGV[1]  int   ms for which it lasts from now on
-- ARGV[2..] str  scores and members
--
-- Returns  int  how many are new

local added = 0
for place = 2, #ARGV, 2 do
  added = added + redis.call('ZADD', KEYS[1], ARGV[place], ARGV[place + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return added

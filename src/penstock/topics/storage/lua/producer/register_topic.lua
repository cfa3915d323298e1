-- register_topic: note the name of a topic, unless there are too many.
--
-- KEYS[1]  SET  the names of all topics
-- ARGV[1]  str  the name
-- ARGV[2]  int  most topics, 0 for any number
--
-- Returns  1  it is noted
--          0  it is not, and there are as many as may be; nothing was written

if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 1 end
local most = tonumber(ARGV[2])
if most > 0 and redis.call('SCARD', KEYS[1]) >= most then return 0 end
return redis.call('SADD', KEYS[1], ARGV[1])

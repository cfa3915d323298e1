-- land_flight: store the value that was made, unless it was set or deleted meanwhile.
--
-- KEYS[1]  STRING  the value
-- KEYS[2]  STRING  who makes it
-- ARGV[1]  str     token of the caller
-- ARGV[2]  str     the value
-- ARGV[3]  int     ms for which it lasts
--
-- Returns  int  1 stored, 0 it is not this caller's to make any more: it may be out of date

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
-- In this order: a full server refuses it, as it is to.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
return 1

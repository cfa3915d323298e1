-- set_cached: store a value; a caller that is making one now does not overwrite it.
--
-- KEYS[1]  STRING  the value
-- KEYS[2]  STRING  who makes it
-- ARGV[1]  str     the value
-- ARGV[2]  int     ms for which it lasts
-- ARGV[3]  int     1 to store it only if there is none
--
-- Returns  int  1 stored, 0 there is a value

local stored
if ARGV[3] == '1' then
  stored = redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
else
  stored = redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
if not stored then return 0 end
redis.call('DEL', KEYS[2])
return 1

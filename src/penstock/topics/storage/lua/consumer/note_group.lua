-- note_group: note with a topic where a group begins, unless that is known or there are too many.
--
-- KEYS[1]  HASH  from group to where it began
-- ARGV[1]  str   group
-- ARGV[2]  str   where it begins, as JSON
-- ARGV[3]  int   most groups, 0 for any number
--
-- Returns  str  what is noted of it
--          nil  nothing, and there are as many as may be; nothing was written

local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then return known end
local most = tonumber(ARGV[3])
if most > 0 and redis.call('HLEN', KEYS[1]) >= most then return false end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]

-- take_flight: read a cached value, or be the one who makes it.
--
-- Flags: allow-oom  who drains a full server may need the value; storing it is another matter
--
-- KEYS[1]  STRING  the value
-- KEYS[2]  STRING  who makes it
-- ARGV[1]  str     token of the caller; the same again is the same caller
-- ARGV[2]  int     ms for which the others wait for it, unless renewed
-- ARGV[3]  str     a value that the caller cannot use; '' if it has met none
--
-- Returns  list  2 and the value; 1 to make it; 0 if another is at it

local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[3] then return {2, value} end
local maker = redis.call('GET', KEYS[2])
if maker and maker ~= ARGV[1] then return {0} end
-- First what needs no memory: before version 7 a full server takes further writes only then.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {1}

-- mark_barrier: mark, once, where in a partition its topic grew.
--
-- Flags: allow-oom  producers wait until this is done
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    the partition's counters
-- ARGV[1]  int     the topic's next generation
--
-- Returns  str  id of the marker
--          nil  there is no such partition

if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local field = 'barrier:' .. ARGV[1]
local known = redis.call('HGET', KEYS[2], field)
if known then return known end
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('HDEL', KEYS[2], field)
local id = redis.call('XADD', KEYS[1], '*', 'barrier', ARGV[1])
redis.call('HSET', KEYS[2], field, id)
return id

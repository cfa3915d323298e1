-- bury_message: write a dead letter, once.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STREAM  the topic's dead letters
-- KEYS[2]  HASH    from group, partition and message id to the id of the dead letter
-- KEYS[3]  HASH    the topic's metadata
-- ARGV[1]  str     group, partition and message id
-- ARGV[2..]  str   fields and values of the dead letter
--
-- Returns  str  id of the dead letter, the earlier one if it was written before
--          nil  the topic was deleted; nothing written

if redis.call('EXISTS', KEYS[3]) == 0 then return false end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then return known end
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('HDEL', KEYS[2], ARGV[1])
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[2], ARGV[1], id)
return id

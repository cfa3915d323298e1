-- stay_member: repeat the heartbeat of a consumer, if it is still among the members.
--
-- The heartbeat thread has a connection of its own, where a beat may arrive after the consumer has
-- left: it must not make it a member again.
--
-- Flags: allow-oom  a full server must not make every consumer look dead
--
-- KEYS[1]  ZSET  the group's consumers by last heartbeat in server ms
-- ARGV[1]  str   consumer
--
-- Returns  1  noted
--          0  it is not a member; nothing written

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
return 1

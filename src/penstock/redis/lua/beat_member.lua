-- beat_member: a consumer says that it lives, and learns who else does.
--
-- Flags: allow-oom  a full server must not make every consumer look dead
--
-- KEYS[1]  ZSET  the group's consumers by last heartbeat in server ms
-- KEYS[2]  HASH  from consumer to what it says of itself
-- KEYS[3]  HASH  the topic's facts
-- ARGV[1]  str   consumer
-- ARGV[2]  str   what it says of itself, as JSON
-- ARGV[3]  int   ms of silence after which a consumer counts as dead
--
-- Returns  list  consumer, what it says of itself; the next consumer, …: in the order of names
--          nil   the topic was deleted; nothing written

if redis.call('EXISTS', KEYS[3]) == 0 then return false end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function forget(members)
  for _, dead in ipairs(members) do
    redis.call('ZREM', KEYS[1], dead)
    redis.call('HDEL', KEYS[2], dead)
  end
end
forget(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3]))
-- Beats from the future are from before the clock was set back; the living beat again at once.
forget(redis.call('ZRANGEBYSCORE', KEYS[1], now + ARGV[3], '+inf'))
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(members)
local answer = {}
for _, member in ipairs(members) do
  answer[#answer + 1] = member
  answer[#answer + 1] = redis.call('HGET', KEYS[2], member) or ''
end
return answer

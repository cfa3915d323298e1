-- beat_member: heartbeat of a consumer; returns the topic's metadata and, if they have changed,
-- who else lives.
--
-- The list of members has a version, in the field `:version` of their information: their
-- number and the server's time of the change. Consumers of earlier versions of Penstock come and go
-- without a new version; their number shows it.
--
-- Flags: allow-oom  a full server must not make every consumer look dead
--
-- KEYS[1]  ZSET  the group's consumers by last heartbeat in server ms
-- KEYS[2]  HASH  from consumer to its information
-- KEYS[3]  HASH  the topic's metadata
-- ARGV[1]  str   consumer
-- ARGV[2]  str   its information, as JSON
-- ARGV[3]  int   ms of silence after which a consumer counts as dead
-- ARGV[4]  str   version of the list that the consumer knows, '' for none
--
-- Returns  list  version; the topic's metadata as a list (partitions, -1 if that is no number;
--                generation; life, '' if it has none yet; partitions it is growing to, 0 if it is
--                not; ms until it has to have grown; options as JSON); if the consumer does not know
--                that version, for each member its name and information
--          nil   the topic was deleted; nothing written

local facts = redis.call('HMGET', KEYS[3], 'partitionCount', 'generation', 'life', 'growing',
  'switchAt', 'options')
if not facts[1] then return false end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local MANY, is_changed = 1000, false
local function forget(members)
  for _, dead in ipairs(members) do
    redis.call('ZREM', KEYS[1], dead)
    redis.call('HDEL', KEYS[2], dead)
    is_changed = true
  end
end
forget(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3], 'LIMIT', 0, MANY))
-- Beats from the future are from before the clock was set back; the living beat again at once.
forget(redis.call('ZRANGEBYSCORE', KEYS[1], now + ARGV[3], '+inf', 'LIMIT', 0, MANY))
-- Before version 7, a full server refuses a script whose first write needs memory.
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then is_changed = true end
redis.call('ZADD', KEYS[1], now, ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  is_changed = true
end
local count = redis.call('ZCARD', KEYS[1])
local version = redis.call('HGET', KEYS[2], ':version') or ''
if is_changed or string.match(version, '^%d+') ~= tostring(count) then
  version = count .. ':' .. time[1] .. '.' .. time[2] .. ':' .. ARGV[1]
  redis.call('HSET', KEYS[2], ':version', version)
end
local switch = 0
if facts[5] then switch = math.max(0, (tonumber(facts[5]) or 0) - now) end
local answer = {version, {tonumber(facts[1]) or -1, tonumber(facts[2]) or 1, facts[3] or '',
  tonumber(facts[4]) or 0, switch, facts[6] or ''}}
if version ~= ARGV[4] then
  local members = redis.call('ZRANGE', KEYS[1], 0, -1)
  for first = 1, count, MANY do
    local last = math.min(first + MANY - 1, count)
    local infos = redis.call('HMGET', KEYS[2], unpack(members, first, last))
    for place = first, last do
      answer[#answer + 1] = members[place]
      answer[#answer + 1] = infos[place - first + 1] or ''
    end
  end
end
return answer

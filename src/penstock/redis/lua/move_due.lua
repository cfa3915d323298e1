-- move_due: store delayed messages whose time has come.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  ZSET    ids of messages not yet due
-- KEYS[3]  HASH    messages not yet due
-- KEYS[4]  ZSET    names of large bodies
-- ARGV[1]  int     most messages to move
--
-- Returns  list  how many were moved, ms until the next is due (-1: none is waiting, or no topic)

-- Of a topic that is being deleted nothing may come back.
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, -1} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, waiting in ipairs(due) do
  local body = redis.call('HGET', KEYS[3], waiting)
  if body then
    local parts = cmsgpack.unpack(body)
    local id = redis.call('XADD', KEYS[1], '*', unpack(parts, 2))
    if parts[1] ~= '' then
      redis.call('ZREM', KEYS[4], parts[1])
      redis.call('ZADD', KEYS[4], string.match(id, '^%d+'), parts[1] .. ' ' .. id)
    end
  end
  redis.call('HDEL', KEYS[3], waiting)
  redis.call('ZREM', KEYS[2], waiting)
end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if not next[1] then return {#due, -1} end
return {#due, math.max(0, next[2] - now)}

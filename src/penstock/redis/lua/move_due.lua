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
local moved, refusal = {}, nil
if due[1] then
  -- What can go wrong with a body does so before anything is written.
  local messages = redis.call('HMGET', KEYS[3], unpack(due))
  for i, body in ipairs(messages) do messages[i] = body and cmsgpack.unpack(body) end
  for i, waiting in ipairs(due) do
    local parts = messages[i]
    if parts then
      -- A refusal of the first ends it all; one of a later must not undo what was moved.
      local add = moved[1] and redis.pcall or redis.call
      local id = add('XADD', KEYS[1], '*', unpack(parts, 2))
      if type(id) == 'table' then
        refusal = id
        break
      end
      if parts[1] ~= '' then
        redis.call('ZREM', KEYS[4], parts[1])
        redis.call('ZADD', KEYS[4], string.match(id, '^%d+'), parts[1] .. ' ' .. id)
      end
    end
    moved[i] = waiting
  end
end
if moved[1] then
  redis.call('HDEL', KEYS[3], unpack(moved))
  redis.call('ZREM', KEYS[2], unpack(moved))
end
if refusal then return refusal end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if not next[1] then return {#moved, -1} end
return {#moved, math.max(0, next[2] - now)}

-- move_due: store delayed messages whose time has come, unless the topic has grown since.
--
-- After the marker of a growth there may be no message placed by the old number of partitions. So the
-- caller passes the generation it knows: if the partition has the marker of the next one, it reads
-- the topic's metadata again.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  ZSET    ids of messages not yet due
-- KEYS[3]  HASH    messages not yet due
-- KEYS[4]  ZSET    names of large bodies
-- KEYS[5]  HASH    the partition's counters
-- ARGV[1]  int     most messages to move; fewer where they are large
-- ARGV[2]  int     the topic's generation, as far as the caller knows
-- ARGV[3..]  str   ids to move; none: those that are due
--
-- Returns  list  how many were moved, ms until the next is due (-1: none is waiting, or no topic; -2:
--                the topic has grown, and nothing was moved)

-- The parts of a message that `publish_message` left here; nil if another program wrote it. Such a body is
-- stored as a payload of its own, so that it comes to a handler or to the dead letters.
local MOST_PARTS = 4000
local function read_body(body)
  local fine, parts = pcall(cmsgpack.unpack, body)
  if not fine or type(parts) ~= 'table' or #parts > MOST_PARTS then return nil end
  local count = 0
  for _, part in pairs(parts) do
    if type(part) ~= 'string' then return nil end
    count = count + 1
  end
  if count ~= #parts or count < 3 or count % 2 == 0 then return nil end
  return parts
end

-- Of a topic that is being deleted nothing may come back.
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, -1} end
if redis.call('HEXISTS', KEYS[5], 'barrier:' .. string.format('%.0f', ARGV[2] + 1)) == 1 then
  return {0, -2}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = {unpack(ARGV, 3)}
if not due[1] then
  due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
end
local moved, bytes, MOST_BYTES = {}, 0, 1048576
for _, waiting in ipairs(due) do
  if bytes > MOST_BYTES then break end
  local body = redis.call('HGET', KEYS[3], waiting)
  if body then
    bytes = bytes + #body
    local parts = read_body(body) or {'', 'payload', body}
    -- Whether the server takes any shows with the first.
    local id = redis.pcall('XADD', KEYS[1], '*', unpack(parts, 2))
    if type(id) == 'table' then
      if not moved[1] then return id end
      break
    end
    if parts[1] ~= '' then
      redis.call('ZREM', KEYS[4], parts[1])
      redis.call('ZADD', KEYS[4], string.match(id, '^%d+'), parts[1] .. ' ' .. id)
    end
  end
  moved[#moved + 1] = waiting
end
if moved[1] then
  redis.call('HDEL', KEYS[3], unpack(moved))
  redis.call('ZREM', KEYS[2], unpack(moved))
end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if not next[1] then return {#moved, -1} end
return {#moved, math.max(0, next[2] - now)}

-- take_slot: take one of so many slots if one is free and nobody came before; else stand in line.
--
-- Flags: allow-oom  work that drains a full server needs its slots
--
-- KEYS[1]  ZSET  holders by the end of their lease
-- KEYS[2]  ZSET  tickets of callers that wait, by their number
-- KEYS[3]  HASH  from a ticket to the time until which it counts
-- KEYS[4]  HASH  the latest fence, the latest number of a ticket
-- ARGV[1]  str   the caller's token, which is its ticket too
-- ARGV[2]  int   how many slots there are
-- ARGV[3]  int   ms for which the slot is taken
-- ARGV[4]  int   ms for which the ticket counts, 0 to stand in no line
-- ARGV[5]  int   1 if this token may have a slot already, since an answer was lost
-- ARGV[6]  int   ms for which the latest fence is kept
--
-- Returns  {1, fence}              taken: the holder is '<fence>:<token>'
--          {0, before, wait_ms}    not now; so many are before the caller, and so long will it be,
--                                  unless slots are released or renewed; -1 if nothing tells

-- Include: time
-- Include: expiry
redis.call('ZREM', KEYS[1], '')  -- a write that needs no memory: the others may follow it
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)

local token, lease = ARGV[1], tonumber(ARGV[3])
if ARGV[5] == '1' then
  for _, holder in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local fence, whose = string.match(holder, '^(%d+):(.*)$')
    if whose == token then
      redis.call('ZADD', KEYS[1], now + lease, holder)
      last_for(KEYS[1], lease)
      return {1, tonumber(fence)}
    end
  end
end

-- Who has not been heard of for too long loses its place; at least the first in line is looked at.
local taken = redis.call('ZCARD', KEYS[1])
local free, before = tonumber(ARGV[2]) - taken, 0
local look_at = math.max(free, 1)
while before < look_at do
  local ticket = redis.call('ZRANGE', KEYS[2], before, before)[1]
  if not ticket or ticket == token then break end
  if now < (tonumber(redis.call('HGET', KEYS[3], ticket) or 0) or 0) then
    before = before + 1
  else
    redis.call('ZREM', KEYS[2], ticket)
    redis.call('HDEL', KEYS[3], ticket)
  end
end

if before < free then
  local latest = tonumber(redis.call('HGET', KEYS[4], 'fence') or 0) or 0
  local fence = string.format('%.0f', math.max(latest + 1, time[1] * 1000000 + time[2]))
  redis.call('HSET', KEYS[4], 'fence', fence)
  redis.call('PEXPIRE', KEYS[4], ARGV[6])
  redis.call('ZADD', KEYS[1], now + lease, fence .. ':' .. token)
  last_for(KEYS[1], lease)
  redis.call('ZREM', KEYS[2], token)
  redis.call('HDEL', KEYS[3], token)
  return {1, tonumber(fence)}
end

local patience = tonumber(ARGV[4])
if patience > 0 then
  if not redis.call('ZSCORE', KEYS[2], token) then
    local number = redis.pcall('HINCRBY', KEYS[4], 'number', 1)
    if type(number) == 'table' then
      -- It was lost, and the line was not: go on after the last in it.
      number = (redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or 0) + 1
      redis.call('HSET', KEYS[4], 'number', number)
    end
    redis.call('ZADD', KEYS[2], number, token)
    redis.call('PEXPIRE', KEYS[4], ARGV[6])
  end
  redis.call('HSET', KEYS[3], token, now + patience)
  last_for(KEYS[2], patience)
  last_for(KEYS[3], patience)
  before = redis.call('ZRANK', KEYS[2], token)
else
  before = redis.call('ZCARD', KEYS[2])
end
-- When this one ends, enough have ended.
local place = before + taken - tonumber(ARGV[2])
local ends = place >= 0 and redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')[2]
return {0, before, ends and math.max(ends - now, 0) or -1}

-- publish: store a message that a plain XADD cannot: once per key, with a large body, or for later.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    from idempotency key to message id
-- KEYS[3]  ZSET    idempotency keys by the time they are forgotten
-- KEYS[4]  STRING  the large body
-- KEYS[5]  ZSET    names of large bodies
-- KEYS[6]  ZSET    ids of messages not yet due
-- KEYS[7]  HASH    messages not yet due
-- ARGV[1]  str     idempotency key, '' for none
-- ARGV[2]  int     ms for which a repeat is recognised
-- ARGV[3]  str     name of the large body, '' for none
-- ARGV[4]  str     the large body
-- ARGV[5]  str     id while it waits, '' to store it at once
-- ARGV[6]  int     ms to wait; or, if negative, the server's ms at which it is due, negated
-- ARGV[7..]  str   fields and values of the message
--
-- Returns  list  id, 1 if it was stored now, 0 if it had been; ms until it is due
--          nil   there is no such partition

if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] ~= '' then
  local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 20)
  if gone[1] then
    redis.call('HDEL', KEYS[2], unpack(gone))
    redis.call('ZREM', KEYS[3], unpack(gone))
  end
  local known = redis.call('HGET', KEYS[2], ARGV[1])
  if known then
    -- Some servers let WAIT cover only what its connection wrote. So the repeat writes, too: twice
    -- for nothing, by commands that need no memory.
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    redis.call('PERSIST', KEYS[2])
    return {known, 0, 0}
  end
end

local wait, body = 0, ''
if ARGV[5] ~= '' then
  wait = tonumber(ARGV[6])
  if wait < 0 then wait = math.max(0, -wait - now) end
end
local id = ARGV[5]
if id ~= '' then
  body = cmsgpack.pack({ARGV[3], unpack(ARGV, 7)})
end
if ARGV[3] ~= '' then redis.call('SET', KEYS[4], ARGV[4]) end
if id == '' then
  id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 7))
  if ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[5], string.match(id, '^%d+'), ARGV[3] .. ' ' .. id)
  end
else
  redis.call('ZADD', KEYS[6], now + wait, id)
  redis.call('HSET', KEYS[7], id, body)
  if ARGV[3] ~= '' then redis.call('ZADD', KEYS[5], '+inf', ARGV[3]) end
end
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], id)
  redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
end
return {id, 1, wait}

-- publish_message: store a message that a plain XADD cannot: once per key, with a large body, or for later.
--
-- Unchecked: a hot path; keys are checked where they are read or written
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
-- ARGV[7]  int     most messages not yet due, 0 for any number
-- ARGV[8]  int     most idempotency keys, 0 for any number
-- ARGV[9..]  str   fields and values of the message
--
-- Returns  list  id, 1 if it was stored now, 0 if it had been; ms until it is due
--          1     there are as many messages not yet due as may be; nothing was written
--          2     the same for idempotency keys
--          nil   there is no such partition

-- Include: types
local has_key, has_body, waits = ARGV[1] ~= '', ARGV[3] ~= '', ARGV[5] ~= ''
if has_body then
  local fault = fault_in('STRING', KEYS[4]) or fault_in('ZSET', KEYS[5])
  if fault then return fault end
end
if waits then
  local kind = redis.call('TYPE', KEYS[1]).ok
  if kind == 'none' then return false end
  if kind ~= 'stream' then return fault_in('STREAM', KEYS[1]) end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone, is_over = nil, false
if has_key then
  gone = redis.pcall('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 20)
  if gone.err then return fault_in('ZSET', KEYS[3]) end
  for _, key in ipairs(gone) do is_over = is_over or key == ARGV[1] end
  local known = redis.pcall('HGET', KEYS[2], ARGV[1])
  if type(known) == 'table' then return fault_in('HASH', KEYS[2]) end
  if known and not is_over then
    if redis.call('EXISTS', KEYS[1]) == 0 then return false end
    -- Some servers let WAIT cover only what its connection wrote. So the repeat writes, too: twice
    -- for nothing, by commands that need no memory.
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    redis.call('PERSIST', KEYS[2])
    return {known, 0, 0}
  end
end

local most_waiting, most_keys = tonumber(ARGV[7]), tonumber(ARGV[8])
if waits and most_waiting > 0 then
  local waiting = redis.pcall('ZCARD', KEYS[6])
  if type(waiting) == 'table' then return fault_in('ZSET', KEYS[6]) end
  if waiting >= most_waiting then return 1 end
end
-- What has expired is not counted: a refusal removes none.
if has_key and most_keys > 0 and redis.call('ZCARD', KEYS[3]) >= most_keys
  and redis.call('ZCOUNT', KEYS[3], '(' .. now, '+inf') >= most_keys then
  return 2
end
local wait, id = 0, ARGV[5]
if waits then
  wait = tonumber(ARGV[6])
  if wait < 0 then wait = math.max(0, -wait - now) end
  local stored = redis.pcall('HSET', KEYS[7], id, cmsgpack.pack({ARGV[3], unpack(ARGV, 9)}))
  if type(stored) == 'table' then return fault_in('HASH', KEYS[7]) or stored end
  local noted = redis.pcall('ZADD', KEYS[6], now + wait, id)
  if type(noted) == 'table' then
    if stored == 1 then redis.call('HDEL', KEYS[7], id) end
    return fault_in('ZSET', KEYS[6]) or noted
  end
else
  local added = redis.pcall('XADD', KEYS[1], 'NOMKSTREAM', '*', unpack(ARGV, 9))
  if not added then return false end
  if type(added) == 'table' then return fault_in('STREAM', KEYS[1]) or added end
  id = added
end
if has_body then
  local score, name = '+inf', ARGV[3]
  if not waits then score, name = string.match(id, '^%d+'), name .. ' ' .. id end
  redis.call('SET', KEYS[4], ARGV[4])
  redis.call('ZADD', KEYS[5], score, name)
end
if gone and gone[1] then
  redis.call('HDEL', KEYS[2], unpack(gone))
  redis.call('ZREM', KEYS[3], unpack(gone))
end
if has_key then
  redis.call('HSET', KEYS[2], ARGV[1], id)
  redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
end
return {id, 1, wait}

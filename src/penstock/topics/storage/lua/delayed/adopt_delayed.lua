-- adopt_delayed: let a delayed message wait in another partition than it was sent to, once.
--
-- The partition that it comes from may be on another node: it is copied here first, and then dropped
-- there. A repeat is recognised, also when the message is in the stream by now.
--
-- Processes that know different numbers of partitions would send a message to and fro, and take one
-- that has come back for a repeat. So nothing is written for a caller whose generation is over here.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  ZSET    ids of messages not yet due
-- KEYS[3]  HASH    messages not yet due
-- KEYS[4]  HASH    from idempotency key to message id
-- KEYS[5]  ZSET    idempotency keys by the time they are forgotten
-- KEYS[6]  STRING  the large body, at its new place
-- KEYS[7]  ZSET    names of large bodies
-- KEYS[8]  HASH    the partition's counters
-- ARGV[1]  str     id of the message
-- ARGV[2]  str     ms at which it is due
-- ARGV[3]  str     the message, as it is stored where it comes from
-- ARGV[4]  int     ms for which a repeat is recognised
-- ARGV[5]  str     name of the large body, '' for none
-- ARGV[6]  str     the large body
-- ARGV[7]  str     key of the large body at its old place
-- ARGV[8]  int     number of this partition
-- ARGV[9]  int     generation of the topic by which it belongs here: after another growth it may come
--                  back
-- ARGV[10] int     generation up to which the caller knows the markers of the partitions
--
-- Returns  1    it waits here
--          0    it did before
--          -2   the topic has grown since; nothing written
--          nil  there is no such partition

if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if redis.call('HEXISTS', KEYS[8], 'barrier:' .. string.format('%.0f', ARGV[10] + 1)) == 1 then return -2 end
-- Include: time
local once = 'moved/' .. ARGV[9] .. '/' .. ARGV[1]
if redis.call('HEXISTS', KEYS[4], once) == 1 then return 0 end
local body = ARGV[3]
local fine, parts = pcall(cmsgpack.unpack, body)
if fine and type(parts) == 'table' then
  for place = 2, #parts - 1, 2 do
    if parts[place] == 'partitionId' then parts[place + 1] = ARGV[8] end
    if parts[place] == 'headers' and ARGV[5] ~= '' and type(parts[place + 1]) == 'string' then
      local first, last = string.find(parts[place + 1], ARGV[7], 1, true)
      if first then
        parts[place + 1] = string.sub(parts[place + 1], 1, first - 1) .. KEYS[6]
          .. string.sub(parts[place + 1], last + 1)
      end
    end
  end
  body = cmsgpack.pack(parts)
end
local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, 20)
redis.call('HSET', KEYS[3], ARGV[1], body)
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
if ARGV[5] ~= '' then
  redis.call('SET', KEYS[6], ARGV[6])
  redis.call('ZADD', KEYS[7], '+inf', ARGV[5])
end
if gone[1] then
  redis.call('HDEL', KEYS[4], unpack(gone))
  redis.call('ZREM', KEYS[5], unpack(gone))
end
redis.call('HSET', KEYS[4], once, ARGV[1])
redis.call('ZADD', KEYS[5], now + ARGV[4], once)
return 1

-- drop_partition: remove a partition, once its groups are gone. Call it until it returns 0.
--
-- Flags: allow-oom  it frees memory
-- Unchecked: all keys go, whatever is in them, but those that it reads
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    epochs by group
-- KEYS[3]  HASH    from group to the id up to which all is settled
-- KEYS[4]  ZSET    names of large bodies
-- KEYS[5]  ZSET    ids of messages not yet due
-- KEYS[6]  HASH    messages not yet due
-- KEYS[7]  HASH    from idempotency key to message id
-- KEYS[8]  ZSET    idempotency keys by the time they are forgotten
-- KEYS[9]  HASH    the partition's counters
-- ARGV[1]  str     what keys of large bodies begin with; a name completes the key
-- ARGV[2]  int     most large bodies to remove in this call
--
-- Returns   0  nothing is left
--           1  large bodies are left
--          -1  a group has come back; nothing written

-- Include: types
local fault = fault_in('HASH', KEYS[2]) or fault_in('ZSET', KEYS[4])
if fault then return fault end
if redis.call('HLEN', KEYS[2]) > 0 then return -1 end
-- First the stream: without it nothing can be added to the rest.
redis.call('UNLINK', KEYS[1])
for _, member in ipairs(redis.call('ZRANGE', KEYS[4], 0, ARGV[2] - 1)) do
  redis.call('UNLINK', ARGV[1] .. (string.match(member, '^%S+') or ''))
  redis.call('ZREM', KEYS[4], member)
end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9])
return redis.call('EXISTS', KEYS[4])

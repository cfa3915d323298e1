-- open_partition: make sure that a partition's stream is there, if only empty; call it until it
-- returns 0 or 1.
--
-- The Java library deletes a topic without what it does not know of. What is left of that life must
-- not swallow or revive messages of the next one, so the partition notes whose life it is.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    the partition's counters; `life` is that of the topic
-- KEYS[3]  HASH    epochs by group
-- KEYS[4]  HASH    from group to the id up to which all is settled
-- KEYS[5]  ZSET    names of large bodies
-- KEYS[6]  ZSET    ids of messages not yet due
-- KEYS[7]  HASH    messages not yet due
-- KEYS[8]  HASH    from idempotency key to message id
-- KEYS[9]  ZSET    idempotency keys by the time they are forgotten
-- ARGV[1]  str     id of this life of the topic
-- ARGV[2]  str     what keys of large bodies begin with; a name completes the key
-- ARGV[3]  int     most large bodies to remove in this call
--
-- Returns  2  large bodies of an earlier life are left
--          1  the stream was made
--          0  it was there

local life = redis.call('HGET', KEYS[2], 'life')
if life and life ~= ARGV[1] then
  local bodies = redis.call('ZRANGE', KEYS[5], 0, ARGV[3] - 1)
  for _, member in ipairs(bodies) do
    redis.call('UNLINK', ARGV[2] .. (string.match(member, '^%S+') or ''))
    redis.call('ZREM', KEYS[5], member)
  end
  if bodies[1] then return 2 end
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[8], KEYS[9])
end
-- Where it is noted nothing is written, so that a topic can be read on a full server.
if life ~= ARGV[1] then redis.call('HSET', KEYS[2], 'life', ARGV[1]) end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('XGROUP', 'CREATE', KEYS[1], 'penstock', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[1], 'penstock')
return 1

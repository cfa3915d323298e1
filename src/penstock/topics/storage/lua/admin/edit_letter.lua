-- edit_letter: put another text in the place of a dead letter, and note who did.
--
-- KEYS[1]  STREAM  the topic's dead letters
-- KEYS[2]  HASH    from group, partition and message id to the id of the dead letter
-- KEYS[3]  STREAM  what people did to the topic
-- ARGV[1]  str     id of the dead letter
-- ARGV[2]  str     who
-- ARGV[3]  str     its place in the index
-- ARGV[4..]  str   fields and values of the new letter
--
-- Returns  str  id of the new letter
--          nil  there is no such letter (any more)

if not redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1] then return false end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
if redis.call('HGET', KEYS[2], ARGV[3]) == ARGV[1] then redis.call('HSET', KEYS[2], ARGV[3], id) end
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*',
  'who', ARGV[2], 'what', 'edit', 'count', 1, 'detail', ARGV[1] .. ' is now ' .. id)
return id

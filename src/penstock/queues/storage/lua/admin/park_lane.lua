-- park_lane: keep a fair lane out of its turns for a while.
--
-- Flags: allow-oom  it is needed on a full server
--
-- KEYS[1]  HASH    the queue's state
-- KEYS[2]  LIST    the ring of fair lanes
-- KEYS[3]  ZSET    parked lanes
-- KEYS[4]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     the lane
-- ARGV[3]  int     ms for which
--
-- Returns  int  the server's ms until which it is parked; 0 if it is paused, and stays so

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: lanes
-- Include: audit
if tonumber(redis.call('ZSCORE', KEYS[3], ARGV[2]) or 0) == PAUSED then return 0 end
if redis.call('LINDEX', KEYS[2], 0) == ARGV[2] then redis.call('HSET', KEYS[1], 'credit', 0) end
redis.call('LREM', KEYS[2], 0, ARGV[2])
redis.call('HSETNX', KEYS[1], 'lanes', 1)
redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[2])
note_act(KEYS[4], ARGV[1], 'park', 1, 'lane ' .. ARGV[2] .. ' for ' .. ARGV[3] .. ' ms')
return now + ARGV[3]

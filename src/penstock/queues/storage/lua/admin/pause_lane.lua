-- pause_lane: let no job of a queue, or of one of its lanes, be claimed until it is resumed.
--
-- Flags: allow-oom  it is needed on a full server
--
-- KEYS[1]  HASH    the queue's state
-- KEYS[2]  LIST    the ring of fair lanes
-- KEYS[3]  ZSET    parked lanes
-- KEYS[4]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     'queue' for the whole of it, 'priority' or 'fair' for one lane
-- ARGV[3]  str     the lane
--
-- Returns  1  it is paused now
--          0  it was

redis.call('HDEL', KEYS[1], '')
-- Include: lanes
-- Include: audit
local kind, lane = ARGV[2], ARGV[3]
if kind == 'queue' then
  if redis.call('HSETNX', KEYS[1], 'paused', 1) == 0 then return 0 end
elseif kind == 'priority' then
  local paused = redis.call('HGET', KEYS[1], 'paused_lanes') or ''
  if string.find(paused, '<' .. lane .. '>', 1, true) then return 0 end
  redis.call('HSET', KEYS[1], 'paused_lanes', paused .. '<' .. lane .. '>')
else
  if tonumber(redis.call('ZSCORE', KEYS[3], lane) or 0) == PAUSED then return 0 end
  if redis.call('LINDEX', KEYS[2], 0) == lane then redis.call('HSET', KEYS[1], 'credit', 0) end
  redis.call('LREM', KEYS[2], 0, lane)
  redis.call('ZADD', KEYS[3], PAUSED, lane)
end
note_act(KEYS[4], ARGV[1], 'pause', 1, kind == 'queue' and '' or 'lane ' .. lane)
return 1

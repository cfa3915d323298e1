-- resume_lane: let jobs of a paused or parked queue or lane be claimed again.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    the queue's state
-- KEYS[2]  LIST    the ring of fair lanes
-- KEYS[3]  ZSET    parked lanes
-- KEYS[4]  STREAM  what people did to the queue
-- KEYS[5]  LIST    the queue's plain list; those of its lanes are named after it
-- ARGV[1]  str     who
-- ARGV[2]  str     'queue' for the whole of it, 'priority' or 'fair' for one lane
-- ARGV[3]  str     the lane
--
-- Returns  1  it was resumed
--          0  it was not paused

redis.call('HDEL', KEYS[1], '')
-- Include: lanes
-- Include: audit
local kind, lane = ARGV[2], ARGV[3]
if kind == 'queue' then
  if redis.call('HDEL', KEYS[1], 'paused') == 0 then return 0 end
elseif kind == 'priority' then
  local paused = redis.call('HGET', KEYS[1], 'paused_lanes') or ''
  local first, last = string.find(paused, '<' .. lane .. '>', 1, true)
  if not first then return 0 end
  paused = string.sub(paused, 1, first - 1) .. string.sub(paused, last + 1)
  if paused == '' then
    redis.call('HDEL', KEYS[1], 'paused_lanes')
  else
    redis.call('HSET', KEYS[1], 'paused_lanes', paused)
  end
else
  if redis.call('ZREM', KEYS[3], lane) == 0 then return 0 end
  redis.call('LREM', KEYS[2], 0, lane)
  enlist(KEYS[2], KEYS[3], lane, redis.call('EXISTS', list_of(KEYS[5], lane)) == 1)
end
wake(KEYS[2], 2)
note_act(KEYS[4], ARGV[1], 'resume', 1, kind == 'queue' and '' or 'lane ' .. lane)
return 1

-- fire_tick: queue the jobs of a due tick and move on to the next tick, or do nothing.
--
-- Any number of workers may try: only the first finds the tick that it expects.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- KEYS[3]  LIST  the queue's plain list; the list of a lane is named after it
-- KEYS[4]  HASH  counters
-- KEYS[5]  LIST  the overflow
-- KEYS[6]  LIST  the ring of fair lanes
-- KEYS[7]  ZSET  parked lanes
-- KEYS[8]  STRING  the unique key
-- KEYS[9]  ZSET  ids of jobs not yet due
-- KEYS[10] ZSET  live workers of the queue
-- KEYS[11] ZSET  dead workers of the queue whose claims are to be returned
-- ARGV[1]  str   name
-- ARGV[2]  str   its declaration
-- ARGV[3]  str   the next tick as the caller read it; '' to queue jobs beside the ticks
-- ARGV[4]  int   earliest time in server ms
-- ARGV[5]  int   the next tick
-- ARGV[6]  str   lane, '' for the plain list
-- ARGV[7]  str   the queue's name
-- ARGV[8]  str   policy for a full list: 'reject', 'dlq' or 'drop_oldest'
-- ARGV[9]  int   most jobs in the list, 0 for any number
-- ARGV[10] int   most bytes in the queue's lists, 0 for any number
-- ARGV[11] int   most jobs in the overflow
-- ARGV[12] str   beginning of the names of records
-- ARGV[13] str   beginning of the names of the indexes by state
-- ARGV[14] int   ms for which a final record is kept
-- ARGV[15] str   beginning of the names of unique keys
-- ARGV[16] str   beginning of the names of claims by worker
-- ARGV[17] int   1 if a job holds the unique key until it ends, 0 for jobs without one
-- ARGV[18] int   how many names and values for records follow, -1 for jobs without records
-- ARGV[19..] str  these; then for each job its id, its id as spelled in keys, and the job; none to
--                 skip a tick
--
-- Returns  list  2 if it is done, but a job still holds the unique key and no other was queued; 1 if it
--                is done; 0 if the list is full and nothing was written; -1 if its tick or
--                declaration differs, or it is too early, and nothing was written; then jobs moved
--                aside or dropped that are compressed, see `note_losses`

-- Include: time
-- Include: records
-- Include: lanes
-- Include: overflow
-- Include: losses
-- Include: schedule
-- Include: uniques
local name, lane, index = ARGV[1], ARGV[6], ARGV[13]
if ARGV[3] ~= '' then
  if redis.call('ZSCORE', KEYS[1], name) ~= ARGV[3] then return {-1} end
  if redis.call('HGET', KEYS[2], declared_in(name)) ~= ARGV[2] then return {-1} end
  if now < tonumber(ARGV[4]) then return {-1} end
end

local recorded, fields = tonumber(ARGV[18]), {}
for place = 19, 18 + recorded do fields[#fields + 1] = ARGV[place] end
local jobs, bytes, unique, packed = {}, 0, ARGV[17] == '1', {}
local held = unique and holder_of(KEYS[8], ARGV[12], {waiting = KEYS[3], ring = KEYS[6],
  parked = KEYS[7], delayed = KEYS[9], workers = KEYS[10], dead_workers = KEYS[11],
  claims = ARGV[16]}, lane)
for place = 19 + math.max(recorded, 0), #ARGV, 3 do
  local id, key, item = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  -- An existing record means that the clock was set back: this tick was fired before.
  local fault = recorded >= 0 and fault_in('HASH', ARGV[12] .. key)
  if fault then return fault end
  local new = recorded < 0 or redis.call('EXISTS', ARGV[12] .. key) == 0
  if new and not held then
    jobs[#jobs + 1] = {id, key, item}
    bytes = bytes + #item
    held = unique
  end
end
local list, side = list_of(KEYS[3], lane), redis.call('HGET', KEYS[2], 'side') or 'right'
local fault = fault_in('LIST', list) or fault_in('ZSET', index .. 'queued')
  or fault_in_counters(KEYS[4])
if fault then return fault end
local is_new_lane = opens_lane(lane, list)
if #jobs > 0 then
  local room, moved, dropped
  room, moved, dropped, fault = make_room(list, KEYS[5], KEYS[4], KEYS[2], index, ARGV[7], side, ARGV[8],
    tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), #jobs, bytes, iso(now), now, lane,
    function(item) note_loss(ARGV[12], index, item, now, ARGV[14], ARGV[15]) end, packed)
  if fault then return fault end
  if not room then return {0} end
  redis.call('HINCRBY', KEYS[4], 'added', #jobs)
  if lane ~= '' then redis.call('HSETNX', KEYS[2], 'lanes', 1) end
  if ARGV[10] ~= '0' then redis.call('HSETNX', KEYS[2], 'bytes', 0) end
end
for _, job in ipairs(jobs) do
  if recorded >= 0 then
    redis.call('HSET', ARGV[12] .. job[2], 'status', 'queued', 'submitted_at', iso(now),
      unpack(fields))
    redis.call('HSET', ARGV[12] .. job[2], 'job_id', job[1])
    redis.call('ZADD', index .. 'queued', now, job[2])
  end
  if unique then redis.call('SET', KEYS[8], job[2]) end
  put(KEYS[3], KEYS[6], KEYS[7], KEYS[2], side, lane, job[3], false, is_new_lane)
  is_new_lane = false
end
if #jobs > 0 then wake(KEYS[6], math.min(#jobs, 2)) end
if ARGV[3] ~= '' then redis.call('ZADD', KEYS[1], ARGV[5], name) end
return {held and #jobs == 0 and 2 or 1, unpack(packed)}

-- receive_jobs: add jobs that come from another queue, at the back of a lane, each with its record.
--
-- KEYS[1]  LIST    the queue's plain list; those of its lanes are named after it
-- KEYS[2]  LIST    the ring of fair lanes
-- KEYS[3]  ZSET    parked lanes
-- KEYS[4]  HASH    the queue's state
-- KEYS[5]  HASH    counters
-- KEYS[6]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     the queue they come from
-- ARGV[3]  str     lane, '' for the plain list
-- ARGV[4]  str     beginning of the names of records
-- ARGV[5]  str     beginning of the names of the indexes by state
-- ARGV[6]  str     the queue's name
-- ARGV[7..]  str   for each its job; its id as records are named, '' for none; its id; its task; '1'
--                  if it has a record; its unique key, '' for none
--
-- Returns  int  how many wait in the lane now

-- Include: time
-- Include: records
-- Include: lanes
-- Include: revival
-- Include: audit
local lane = ARGV[3]
local fault = fault_in('LIST', list_of(KEYS[1], lane)) or fault_in_number(KEYS[4], 'bytes')
  or fault_in_number(KEYS[5], 'added') or fault_in_indexes(ARGV[5])
if fault then return fault end
local side = redis.call('HGET', KEYS[4], 'side') or 'right'
local count = (#ARGV - 6) / 6
redis.call('HINCRBY', KEYS[5], 'added', count)
if lane ~= '' then redis.call('HSETNX', KEYS[4], 'lanes', 1) end
for place = 7, #ARGV, 6 do
  local item, name, id, task, is_tracked, unique = unpack(ARGV, place, place + 5)
  put(KEYS[1], KEYS[2], KEYS[3], KEYS[4], side, lane, item, false)
  if name ~= '' then
    take_unique(unique, name)
    restart_record(ARGV[4] .. name, ARGV[5], name, is_tracked == '1',
      {'job_id', id, 'task', task, 'queue', ARGV[6], 'unique', unique}, now)
  end
end
wake(KEYS[2], math.min(count, 2))
note_act(KEYS[6], ARGV[1], 'receive', count, 'from ' .. ARGV[2])
return redis.call('LLEN', list_of(KEYS[1], lane))

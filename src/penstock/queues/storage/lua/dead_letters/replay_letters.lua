-- replay_letters: turn dead letters into jobs again, at the back of their lanes, each once.
--
-- Only a letter that is still there, byte by byte, is taken: of concurrent calls one gets it.
--
-- Flags: allow-oom  what is queued is smaller than its letter
--
-- KEYS[1]  LIST    the letters
-- KEYS[2]  LIST    the queue's plain list; those of its lanes are named after it
-- KEYS[3]  LIST    the ring of fair lanes
-- KEYS[4]  ZSET    parked lanes
-- KEYS[5]  HASH    the queue's state
-- KEYS[6]  HASH    counters
-- KEYS[7]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     more about it
-- ARGV[3]  str     beginning of the names of records
-- ARGV[4]  str     beginning of the names of the indexes by state
-- ARGV[5]  str     the queue's name
-- ARGV[6..]  str   for each its letter; how many were before that; the job; its lane; its id as
--                  records are named, '' for none; its id; its task; '1' if it has a record; its
--                  unique key, '' for none
--
-- Returns  list  for each 1 if it is queued now, 0 if there was no such letter

redis.call('HDEL', KEYS[5], '')
-- Include: time
-- Include: records
-- Include: lanes
-- Include: revival
-- Include: audit
-- Include: pull
local fault = fault_in_number(KEYS[5], 'bytes') or fault_in_number(KEYS[6], 'requeued')
  or fault_in_indexes(ARGV[4])
for place = 6, #ARGV, 9 do
  fault = fault or fault_in('LIST', list_of(KEYS[2], ARGV[place + 3]))
end
if fault then return fault end
local side = redis.call('HGET', KEYS[5], 'side') or 'right'
local answer, count, last = {}, 0, 0
for place = 6, #ARGV, 9 do
  local letter, before, item, lane, name, id, task, is_tracked, unique =
    unpack(ARGV, place, place + 8)
  local index = locate(KEYS[1], letter, before, 1)
  if index then
    put(KEYS[2], KEYS[3], KEYS[4], KEYS[5], side, lane, item, false)
    if lane ~= '' then redis.call('HSETNX', KEYS[5], 'lanes', 1) end
    if name ~= '' then
      take_unique(unique, name)
      restart_record(ARGV[3] .. name, ARGV[4], name, is_tracked == '1',
        {'job_id', id, 'task', task, 'queue', ARGV[5], 'unique', unique}, now)
    end
    strike(KEYS[1], index)
    last = index
    count = count + 1
  end
  answer[#answer + 1] = index and 1 or 0
end
remove_struck(KEYS[1], count, last)
if count > 0 then
  wake(KEYS[3], math.min(count, 2))
  redis.call('HINCRBY', KEYS[6], 'requeued', count)
  note_act(KEYS[7], ARGV[1], 'requeue', count, ARGV[2])
end
return answer

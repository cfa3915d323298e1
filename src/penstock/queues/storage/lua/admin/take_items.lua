-- take_items: claim certain waiting jobs of a lane, as a worker claims the next ones.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  HASH  the queue's state
-- KEYS[6]  HASH  counters
-- KEYS[7]  SET   jobs that were cancelled while they waited
-- ARGV[1]  str   worker
-- ARGV[2]  str   lane, '' for the plain list
-- ARGV[3]  int   number of the first claim
-- ARGV[4..]  str  for each its job, byte by byte; how many were to be claimed before it; its id as
--                 records are named, '' for none
--
-- Returns  list  for each 1 if it is claimed now, 0 if it did not wait there, or was cancelled and is
--                gone now; the claims are numbered in this order, with or without a job
--          int   -1  the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return -1 end
-- Include: time
-- Include: lanes
-- Include: audit
-- Include: pull
local lane, first = ARGV[2], tonumber(ARGV[3])
local list = list_of(KEYS[3], lane)
local fault = fault_in('LIST', list) or fault_in_number(KEYS[5], 'bytes')
if fault then return fault end
local facts = redis.call('HMGET', KEYS[5], 'side', 'bytes')
local from = facts[1] == 'left' and -1 or 1
local answer, taken, passed, freed, last = {}, 0, 0, 0, 0
for place = 4, #ARGV, 3 do
  local item, before, id = unpack(ARGV, place, place + 2)
  local index, cancelled = locate(list, item, before, from), false
  if index then
    cancelled = id ~= '' and redis.call('SREM', KEYS[7], id) == 1
    if cancelled then
      passed = passed + 1
    else
      local number = first + #answer
      redis.call('HSET', KEYS[2], lane == '' and number or number .. ':' .. lane, item)
    end
    strike(list, index)
    last = index
    taken, freed = taken + 1, freed + #item
  end
  answer[#answer + 1] = index and not cancelled and 1 or 0
end
remove_struck(list, taken, last)
if passed > 0 then redis.pcall('HINCRBY', KEYS[6], 'passed_over', passed) end
if facts[2] and freed > 0 then
  redis.call('HSET', KEYS[5], 'bytes', math.max(0, tonumber(facts[2]) - freed))
end
if not PRIORITIES[lane] and redis.call('EXISTS', list) == 0 then
  if redis.call('LINDEX', KEYS[4], 0) == lane then redis.call('HSET', KEYS[5], 'credit', 0) end
  redis.call('LREM', KEYS[4], 0, lane)
  index_lane(KEYS[4], lane, false)
end
return answer

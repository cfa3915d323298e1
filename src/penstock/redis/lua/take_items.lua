-- take_items: take certain waiting jobs of a lane in hand, as a worker does whatever comes next.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  HASH  the queue's state
-- ARGV[1]  str   worker
-- ARGV[2]  str   lane, '' for the plain list
-- ARGV[3]  int   number of the first claim
-- ARGV[4..]  str  for each its job, byte by byte; how many were to be claimed before it
--
-- Returns  list  for each 1 if it is in hand now, 0 if it did not wait there; the claims are
--                numbered in this order, with or without a job
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
local answer, taken, freed, last = {}, 0, 0, 0
for place = 4, #ARGV, 2 do
  local index = locate(list, ARGV[place], ARGV[place + 1], from)
  if index then
    local number = first + #answer
    redis.call('HSET', KEYS[2], lane == '' and number or number .. ':' .. lane, ARGV[place])
    strike(list, index)
    last = index
    taken, freed = taken + 1, freed + #ARGV[place]
  end
  answer[#answer + 1] = index and 1 or 0
end
remove_struck(list, taken, last)
if facts[2] and freed > 0 then
  redis.call('HSET', KEYS[5], 'bytes', math.max(0, tonumber(facts[2]) - freed))
end
if not PRIORITIES[lane] and redis.call('EXISTS', list) == 0 then
  if redis.call('LINDEX', KEYS[4], 0) == lane then redis.call('HSET', KEYS[5], 'credit', 0) end
  redis.call('LREM', KEYS[4], 0, lane)
end
return answer

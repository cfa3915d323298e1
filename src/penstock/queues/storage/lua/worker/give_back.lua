-- give_back: return jobs in hand to the front of their lanes, in the order given, not charged.
--
-- A worker that was given up as dead, and lives, gives back what no other worker has returned. A job whose
-- lane is not a list stays in hand, and the others go back.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: one lane of another type must not keep the jobs of the others
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  HASH  the queue's state
-- KEYS[7]  ZSET  dead workers of the queue whose claims are to be returned
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5..]  str  for each job its claim; its id, '' if it was not begun or has no record; the job as
--                 it is to be queued, '' for as it is
--
-- Returns  int  how many went back; an error if a lane is not a list and none did
--          -1   the worker was given up as dead, and all its jobs returned; nothing was done

-- Include: types
local fault = fault_in('ZSET', KEYS[1]) or fault_in('HASH', KEYS[2]) or fault_in('LIST', KEYS[4])
  or fault_in('ZSET', KEYS[5]) or fault_in('HASH', KEYS[6]) or fault_in('ZSET', KEYS[7])
if fault then return fault end
redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and not redis.call('ZSCORE', KEYS[7], ARGV[1]) then
  return -1
end
-- Include: time
-- Include: records
-- Include: lanes
local stuck = fault_in_indexes(ARGV[3])
if stuck then return stuck end
local side = redis.call('HGET', KEYS[6], 'side') or 'right'
local returned = 0
for place = #ARGV - 2, 5, -3 do
  local claim, id, item = unpack(ARGV, place, place + 2)
  local stored = redis.call('HGET', KEYS[2], claim)
  local stays = stored and fault_in('LIST', list_of(KEYS[3], lane_in(claim)))
  stuck = stuck or stays
  if stored and not stays then
    put(KEYS[3], KEYS[4], KEYS[5], KEYS[6], side, lane_in(claim), item ~= '' and item or stored, true)
    redis.call('HDEL', KEYS[2], claim)
    free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim)
    if id ~= '' then return_to_queue(ARGV[2] .. id, ARGV[3], id, now) end
    returned = returned + 1
  end
end
if returned > 0 then wake(KEYS[4], math.min(returned, 2)) end
return returned == 0 and stuck or returned

-- reap_claims: return jobs of a dead worker to the front of their lanes, or bury them.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  dead workers of the queue
-- KEYS[2]  HASH  the dead worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  HASH  the queue's state
-- KEYS[7]  LIST  the dead letters
-- KEYS[8]  HASH  counters
-- ARGV[1]  str   the dead worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms for which a final record is kept
-- ARGV[6..]  str  for each job its claim; its id, '' for none; its unique key, '' for none; 'back' or
--                 'bury'; the job as it is to be queued, or the letter; why it is buried
--
-- Returns  int  how many jobs were moved; the worker is forgotten when it has none left

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: records
-- Include: lanes
local side = redis.call('HGET', KEYS[6], 'side') or 'right'
local moved = 0
for place = #ARGV - 5, 6, -6 do
  local claim, id, unique, verdict, item, why = unpack(ARGV, place, place + 5)
  if redis.call('HDEL', KEYS[2], claim) == 1 then
    local record = ARGV[2] .. id
    if verdict == 'bury' then
      redis.call('RPUSH', KEYS[7], item)
      close(record, ARGV[3], id, 'failed', now, ARGV[5], {'error', why, 'error_type', 'Crashed'})
      forget(unique, id)
    else
      put(KEYS[3], KEYS[4], KEYS[5], KEYS[6], side, lane_in(claim), item, true)
      turn(record, ARGV[3], id, 'queued', now)
    end
    free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim)
    redis.call('HINCRBY', KEYS[8], verdict == 'bury' and 'dead' or 'reaped', 1)
    moved = moved + 1
  end
end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('ZREM', KEYS[1], ARGV[1]) end
return moved

-- finish_jobs: end jobs in hand that have a record or a unique key, if the worker still has them.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  HASH  counters
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms for which a final record is kept
-- ARGV[6..]  str  for each job its claim; its id; its final state; its unique key, '' for none; its
--                 result, '' for none
--
-- Returns  list  for each job 1 if it has ended now, 0 if it was not in hand
--          int   -1  the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('HINCRBY', KEYS[6], 'stale', (#ARGV - 5) / 5)
  return -1
end
-- Include: time
-- Include: records
-- Include: lanes
local answer = {}
for place = 6, #ARGV, 5 do
  local claim, id, state, unique, result = unpack(ARGV, place, place + 4)
  local held = redis.call('HDEL', KEYS[2], claim)
  if held == 1 then
    free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim)
    local record = ARGV[2] .. id
    if close(record, ARGV[3], id, state, now, ARGV[5]) and result ~= '' then
      redis.call('HSET', record, 'result', result)
    end
    forget(unique, id)
    redis.call('HINCRBY', KEYS[6], state, 1)
  end
  answer[#answer + 1] = held
end
return answer

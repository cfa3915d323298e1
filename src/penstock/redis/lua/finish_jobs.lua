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
-- ARGV[6..]  str  for each job its claim; its id; its final state; its unique key, '' for none; how
--                 long it ran, in seconds; its result, '' for none
--
-- Returns  int  how many of the jobs were in hand until now
--          -1   the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('HINCRBY', KEYS[6], 'stale', (#ARGV - 5) / 6)
  return -1
end
-- Include: time
-- Include: records
-- Include: lanes
local at, claims, ends, over = iso(now), {}, {}, {}
for place = 6, #ARGV, 6 do
  local claim, id, state, unique, seconds, result = unpack(ARGV, place, place + 5)
  claims[#claims + 1] = claim
  free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim)
  local record = ARGV[2] .. id
  if redis.call('HGET', record, 'status') == 'processing' then
    local fields = {'status', state, 'completed_at', at, 'duration_seconds', seconds}
    if result ~= '' then fields[7], fields[8] = 'result', result end
    redis.call('HSET', record, unpack(fields))
    redis.call('PEXPIRE', record, ARGV[5])
    over[#over + 1] = id
    ends[state] = ends[state] or {}
    ends[state][#ends[state] + 1] = now
    ends[state][#ends[state] + 1] = id
  else  -- without a record, or it expired before it was begun
    close(record, ARGV[3], id, state, now, ARGV[5], nil, at)
  end
  forget(unique, id)
end
local held = redis.call('HDEL', KEYS[2], unpack(claims))
if over[1] then redis.call('ZREM', ARGV[3] .. 'processing', unpack(over)) end
for state, members in pairs(ends) do
  redis.call('ZADD', ARGV[3] .. state, unpack(members))
  sweep(ARGV[3], state, now, ARGV[5])
end
-- All ends of one call are alike but for the rare ones: jobs that were cancelled or have expired.
redis.call('HINCRBY', KEYS[6], ARGV[8], held)
return held

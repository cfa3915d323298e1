-- finish_jobs: end jobs in hand that have a record or a unique key, if the worker still has them.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every job passes here; what it reads first, or writes, is looked at
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  HASH  counters
-- KEYS[7]  SET   jobs that were cancelled while they waited
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms for which a final record is kept
-- ARGV[6]  str   the final state of all of them; 'passed_over' if they had ended before they were
--                begun: then their records and unique keys stay as they are
-- ARGV[7..]  str  for each job its claim; its id; its unique key, '' for none; 1 if its record does
--                 not say yet that it was begun; how long it ran, in seconds; its result, '' for
--                 none, `!` and why for one that cannot be stored
--
-- Returns  int  how many of the jobs were in hand until now
--          -1   the worker was given up as dead; nothing was done

-- Include: types
local touched, seen = redis.pcall('HDEL', KEYS[2], ''), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
if type(touched) == 'table' then return fault_in('HASH', KEYS[2]) end
if type(seen) == 'table' then return fault_in('ZSET', KEYS[1]) end
if not seen then
  redis.pcall('HINCRBY', KEYS[6], 'stale', (#ARGV - 6) / 6)
  return -1
end
-- Include: time
-- Include: records
-- Include: lanes
local at, state, claims, ends = iso(now), ARGV[6], {}, {}
local over, starts, passed = {processing = {}, queued = {}}, {}, 0
-- The states that jobs have, and the indexes that they leave: nothing is written until all is read.
local states, awaited, indexes, ended, has_lanes = {}, {}, {[state] = true}, {}, false
for place = 7, #ARGV, 6 do
  local facts = redis.pcall('HMGET', ARGV[2] .. ARGV[place + 1], 'status', 'waited')
  local status = facts[1]  -- none of a key of another type
  if status then
    states[place] = status
    awaited[place] = facts[2]
    if LEGAL[status] then indexes[status] = true end
  end
  has_lanes = has_lanes or lane_in(ARGV[place]) ~= ''
end
local fault = has_lanes and (fault_in('LIST', KEYS[4]) or fault_in('ZSET', KEYS[5]))
for status in pairs(indexes) do fault = fault or fault_in('ZSET', ARGV[3] .. status) end
if fault then return fault end

local announced, unmarked = {}, {}
for place = 7, #ARGV, 6 do
  local claim, id, unique, late, seconds, result = unpack(ARGV, place, place + 5)
  claims[#claims + 1] = claim
  if has_lanes then free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim) end
  local record, status = ARGV[2] .. id, ended[id] or states[place]
  if state == 'passed_over' then
    unmarked[#unmarked + 1] = id
  elseif status == 'processing' or (status == 'queued' and late == '1') then
    local fields = {'status', state, 'completed_at', at, 'duration_seconds', seconds}
    if status == 'queued' then
      local began = now - math.floor(seconds * 1000)
      starts[began] = starts[began] or iso(began)
      fields[7], fields[8], fields[9], fields[10] = 'started_at', starts[began], 'worker', ARGV[1]
      fields[11], fields[12] = 'attempt', 1  -- later ones are noted as they begin
    end
    if string.sub(result, 1, 1) == '!' then
      fields[#fields + 1], fields[#fields + 2] = 'error', string.sub(result, 2)
      fields[#fields + 1], fields[#fields + 2] = 'error_type', 'ResultNotStored'
    elseif result ~= '' then
      fields[#fields + 1], fields[#fields + 2] = 'result', result
    end
    redis.call('HSET', record, unpack(fields))
    redis.call('PEXPIRE', record, ARGV[5])
    over[status][#over[status] + 1] = id
    ends[#ends + 1], ends[#ends + 2] = now, id
    ended[id] = state  -- other programs may give two jobs one id
    if awaited[place] then announced[#announced + 1] = id end
  elseif status and LEGAL[status] then  -- its record does not say that it was begun
    close(record, ARGV[3], id, state, now, ARGV[5], nil, at)
  else
    unmarked[#unmarked + 1] = id
    if status then  -- cancelled before it was noted as running
      passed = passed + redis.call('HEXISTS', KEYS[2], claim)
    end
  end
  if unique ~= '' and state ~= 'passed_over' then forget(unique, id) end
end
local held = redis.call('HDEL', KEYS[2], unpack(claims))
for status, ids in pairs(over) do
  if ids[1] then redis.call('ZREM', ARGV[3] .. status, unpack(ids)) end
end
if ends[1] then redis.call('ZADD', ARGV[3] .. state, unpack(ends)) end
if state ~= 'passed_over' then sweep(ARGV[3], state, now, ARGV[5]) end
if unmarked[1] then redis.pcall('SREM', KEYS[7], unpack(unmarked)) end
if announced[1] then announce(ARGV[3], announced) end
if held > passed then redis.pcall('HINCRBY', KEYS[6], state, held - passed) end
if passed > 0 then redis.pcall('HINCRBY', KEYS[6], 'passed_over', passed) end
return held

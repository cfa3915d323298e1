-- begin_jobs: note that jobs in hand are about to run, and tell which of them may not.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every job passes here; what it reads first, or writes, is looked at
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  SET   jobs that were cancelled while they waited
-- KEYS[4]  HASH  jobs that workers may have died of, and which worker reads or tries which
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4..]  str  for each job its claim; its id, '' for a job without a record; its attempt; as
--                 a JSON list names and values for a record that is to be made, '' for none; the job
--                 as it is to stand in the claims from now on, '' to leave it
--
-- Returns  list  for each job 1 to run it, 2 if it was cancelled, 0 if it has ended or is
--                not in hand
--          int   -1  the worker was given up as dead; nothing was done

-- Include: types
local touched, seen = redis.pcall('HDEL', KEYS[2], ''), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
if type(touched) == 'table' then return fault_in('HASH', KEYS[2]) end
if type(seen) == 'table' then return fault_in('ZSET', KEYS[1]) end
if not seen then return -1 end
-- Include: time
-- Include: records
-- An id as its sender wrote it: in keys all but plain characters are escaped.
local function spelled_out(id)
  return (string.gsub(id, '%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end))
end

-- The mark outlives the record: a job may wait for longer than a final record is kept. It is removed
-- with the claim. Where there is a live record again, the id was submitted again, and runs.
local marks = redis.pcall('SCARD', KEYS[3])
local has_marks = type(marks) == 'number' and marks > 0
local function was_cancelled(id, status)
  if status then return status == 'cancelled' end
  return has_marks and redis.call('SISMEMBER', KEYS[3], id) == 1
end

-- The states that jobs have, and the indexes that they leave: nothing is written until all is read.
local states, indexes = {}, {processing = true}
for place = 4, #ARGV, 5 do
  local id = ARGV[place + 1]
  if id ~= '' then
    local status = redis.pcall('HGET', ARGV[2] .. id, 'status')
    states[place] = status
    if type(status) == 'string' and LEGAL[status] then indexes[status] = true end
  end
end
for status in pairs(indexes) do
  local fault = fault_in('ZSET', ARGV[3] .. status)
  if fault then return fault end
end

local answer, at, begun, from = {}, iso(now), {}, {}
for place = 4, #ARGV, 5 do
  local claim, id, attempt, first, item = unpack(ARGV, place, place + 4)
  local verdict, status = 1, states[place]
  if redis.call('HEXISTS', KEYS[2], claim) == 0 then
    verdict = 0  -- this call was given up, made again, and comes only now
  elseif id ~= '' and type(status) ~= 'table' then  -- another kind of key is no record
    local record = ARGV[2] .. id
    if was_cancelled(id, status) then
      verdict = 2
    elseif status and status ~= 'processing' and not (LEGAL[status] and LEGAL[status].processing) then
      verdict = 0
    else
      if not status then  -- pushed by a program that keeps no records
        if first ~= '' then redis.call('HSET', record, unpack(cjson.decode(first))) end
        redis.call('HSET', record, 'job_id', spelled_out(id), 'submitted_at', at,
          'retry_count', attempt - 1)
      elseif status ~= 'processing' then
        from[status] = from[status] or {}
        from[status][#from[status] + 1] = id
      end
      redis.call('HSET', record, 'status', 'processing', 'started_at', at, 'worker', ARGV[1],
        'attempt', attempt)
      begun[#begun + 1] = now
      begun[#begun + 1] = id
    end
  end
  if verdict == 1 and item ~= '' then
    redis.call('HSET', KEYS[2], claim, item)
    local trial = '?' .. ARGV[1]
    if redis.pcall('HGET', KEYS[4], trial) == claim then redis.call('HDEL', KEYS[4], trial) end
  end
  answer[#answer + 1] = verdict
end
for status, ids in pairs(from) do redis.call('ZREM', ARGV[3] .. status, unpack(ids)) end
if begun[1] then redis.call('ZADD', ARGV[3] .. 'processing', unpack(begun)) end
return answer

-- The record of a job: its state by the legal edges alone, and the index of jobs by state.

local LEGAL = {
  submitted = {queued = 1, cancelled = 1, expired = 1, failed = 1},
  queued = {processing = 1, cancelled = 1, expired = 1, failed = 1},
  processing = {done = 1, failed = 1, retrying = 1, queued = 1, cancelled = 1, expired = 1},
  retrying = {queued = 1, processing = 1, cancelled = 1, expired = 1, failed = 1}
}

local function iso(ms)
  local floor = math.floor
  local seconds = floor(ms / 1000)
  local days = floor(seconds / 86400)
  local rest = seconds - days * 86400
  local shifted = days + 719468
  local era = floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ',
    yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - floor((153 * mp + 2) / 5) + 1,
    floor(rest / 3600), floor(rest % 3600 / 60), rest % 60, ms - seconds * 1000)
end

-- Returns whether the job was taken to the state; a job without a record has none to take.
local function turn(record, index, id, to, ms)
  local from = redis.call('HGET', record, 'status')
  if not from or not LEGAL[from] or not LEGAL[from][to] then return false end
  redis.call('HSET', record, 'status', to)
  redis.call('ZREM', index .. from, id)
  redis.call('ZADD', index .. to, ms, id)
  return true
end

-- Takes a job to a final state: from then on its record has an end.
local function close(record, index, id, to, ms, ttl)
  local began = redis.call('ZSCORE', index .. 'processing', id)
  if not turn(record, index, id, to, ms) then return false end
  redis.call('HSET', record, to == 'failed' and 'failed_at' or 'completed_at', iso(ms))
  if began then
    redis.call('HSET', record, 'duration_seconds', string.format('%.3f', (ms - began) / 1000))
  end
  redis.call('PEXPIRE', record, ttl)
  redis.call('ZREMRANGEBYSCORE', index .. to, '-inf', ms - ttl)
  return true
end

-- Lets a unique key go, if it is still this job's.
local function forget(unique, id)
  if unique ~= '' and redis.call('GET', unique) == id then redis.call('DEL', unique) end
end

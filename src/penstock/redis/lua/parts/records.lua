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

-- Takes a job to a state, with names and values for its record. Returns whether that was legal; a
-- job without a record has none to take.
local function turn(record, index, id, to, ms, fields)
  local from = redis.call('HGET', record, 'status')
  if not from or not LEGAL[from] or not LEGAL[from][to] then return false end
  redis.call('HSET', record, 'status', to, unpack(fields or {}))
  redis.call('ZREM', index .. from, id)
  redis.call('ZADD', index .. to, ms, id)
  return true
end

-- Forgets those that have been in a final state for as long as their records are kept.
local function sweep(index, state, ms, ttl)
  redis.call('ZREMRANGEBYSCORE', index .. state, '-inf', ms - ttl)
end

-- Takes a job to a final state: from then on its record has an end.
local function close(record, index, id, to, ms, ttl, fields, at)
  fields = fields or {}
  fields[#fields + 1] = to == 'failed' and 'failed_at' or 'completed_at'
  fields[#fields + 1] = at or iso(ms)
  local began = redis.call('ZSCORE', index .. 'processing', id)
  if began then
    fields[#fields + 1] = 'duration_seconds'
    fields[#fields + 1] = string.format('%.3f', (ms - began) / 1000)
  end
  if not turn(record, index, id, to, ms, fields) then return false end
  redis.call('PEXPIRE', record, ttl)
  return true
end

-- Lets a unique key go, if it is still this job's.
local function forget(unique, id)
  if unique ~= '' and redis.call('GET', unique) == id then redis.call('DEL', unique) end
end

-- The record of a job: its state by the legal edges alone, and the index of jobs by state.

local LEGAL = {
  submitted = {queued = 1, cancelled = 1, expired = 1, failed = 1},
  queued = {processing = 1, cancelled = 1, expired = 1, failed = 1},
  processing = {done = 1, failed = 1, retrying = 1, queued = 1, cancelled = 1, expired = 1},
  retrying = {queued = 1, processing = 1, cancelled = 1, expired = 1, failed = 1}
}

-- Include: calendar
-- The state in a record; nil without one. A key of another type does not count.
local function status_in(record)
  local status = redis.pcall('HGET', record, 'status')
  return type(status) == 'string' and status or nil
end

-- The error to answer with if an index is not one.
local function fault_in_indexes(index)
  for _, state in ipairs({'submitted', 'queued', 'processing', 'retrying', 'done', 'failed',
    'cancelled', 'expired'}) do
    local fault = fault_in('ZSET', index .. state)
    if fault then return fault end
  end
end

-- Takes a job to a state, with names and values for its record. Returns whether that was legal; a
-- job without a record has none to take.
local function turn(record, index, id, to, ms, fields)
  local from = status_in(record)
  if not from or not LEGAL[from] or not LEGAL[from][to] then return false end
  redis.call('HSET', record, 'status', to, unpack(fields or {}))
  redis.call('ZREM', index .. from, id)
  redis.call('ZADD', index .. to, ms, id)
  return true
end

-- Forgets those that have been in a final state for as long as their records are kept: a bounded
-- number per call, and more than one call can add.
-- Include: sweep
local function sweep(index, state, ms, ttl)
  return sweep_upto(index .. state, ms - ttl)
end

-- Tells those who wait for the ends of jobs; where that is not allowed, they look by themselves.
local function announce(index, ids)
  redis.pcall('PUBLISH', index .. 'ended', table.concat(ids, ' '))
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
  if redis.call('HEXISTS', record, 'waited') == 1 then announce(index, {id}) end
  return true
end

-- The set of jobs that were cancelled while they waited on a list; it is beside the indexes.
local function cancelled_beside(index)
  return string.sub(index, 1, -#'jobs:' - 1) .. 'cancelled'
end

-- Notes that a job goes back to its list; one that was cancelled meanwhile is passed over there.
local function return_to_queue(record, index, id, ms)
  if not turn(record, index, id, 'queued', ms) and status_in(record) == 'cancelled' then
    redis.pcall('SADD', cancelled_beside(index), id)
  end
end

-- Lets a unique key go, if it is still this job's.
local function forget(unique, id)
  if unique ~= '' and redis.pcall('GET', unique) == id then redis.call('DEL', unique) end
end

-- A job that is queued again: its record begins anew, and its unique key is its own if nobody has it.

local PAST = {'error', 'error_type', 'error_code', 'suggestions', 'traceback', 'failed_at',
  'completed_at', 'started_at', 'duration_seconds', 'worker', 'claim', 'cancel_asked', 'result',
  'attempt', 'reason', 'progress_done', 'progress_total', 'progress_note'}

-- `fields` are names and values of a record that has to be made. That of a job which is under way
-- already (queued twice by others) stays as it is.
local function begin_anew(record, index, id, is_tracked, fields, ms)
  local status = redis.call('HGET', record, 'status')
  if (status and LEGAL[status]) or not (status or is_tracked) then return end
  if status then
    redis.call('ZREM', index .. status, id)
    redis.call('HDEL', record, unpack(PAST))
    redis.call('PERSIST', record)
  else
    redis.call('HSET', record, 'submitted_at', iso(ms), unpack(fields))
  end
  redis.call('HSET', record, 'status', 'queued', 'retry_count', 0)
  redis.call('ZADD', index .. 'queued', ms, id)
end

local function take_unique(unique, id, hold_ms)
  if unique ~= '' then redis.call('SET', unique, id, 'NX', 'PX', hold_ms) end
end

-- Asks every key that a revival writes, so that one of a wrong type is found before any is written.
local function look_before(record, unique)
  redis.call('HEXISTS', record, 'status')
  if unique ~= '' then redis.call('GET', unique) end
end

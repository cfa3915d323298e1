-- A job that is queued again: its record is reset, and it takes its unique key if that is free.

local PAST = {'error', 'error_type', 'error_code', 'suggestions', 'traceback', 'failed_at',
  'completed_at', 'started_at', 'duration_seconds', 'worker', 'claim', 'cancel_asked', 'result',
  'attempt', 'reason', 'progress_done', 'progress_total', 'progress_note', 'waited'}

-- `fields` are names and values of a record that has to be made. That of a job which is under way
-- already (queued twice by others) stays as it is.
local function restart_record(record, index, id, is_tracked, fields, ms)
  if fault_in('HASH', record) then return end
  local status = status_in(record)
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

local function take_unique(unique, id)
  if unique ~= '' then redis.call('SET', unique, id, 'NX') end
end

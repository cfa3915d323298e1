-- What becomes of the record, the unique key and the cancel mark of a job that a full queue has
-- dropped or moved aside. One that is compressed cannot be read here: the caller gets those.

local function as_in_keys(text)
  return (string.gsub(text, '[^A-Za-z0-9_.+@=-]', function(character)
    return string.format('%%%02X', string.byte(character))
  end))
end

local function text_in(value)
  return type(value) == 'string' and value ~= '' and value or nil
end

-- `uniques` is the beginning of the names of unique keys.
local function note_loss(records, index, item, ms, ttl, uniques)
  local known, job = pcall(cjson.decode, item)
  if not known or type(job) ~= 'table' then return end
  local meta = type(job._penstock) == 'table' and job._penstock or {}
  local own = text_in(job.task) and text_in(job.id)
  local name = own or text_in(meta.id) or text_in(job.job_id) or text_in(job.id)
  if not name then return end
  name = as_in_keys(name)
  local record = records .. name
  if close(record, index, name, 'failed', ms, ttl) then
    redis.call('HSET', record, 'error', 'dropped from a full queue', 'error_type', 'Overflow')
  end
  if text_in(meta.unique) then forget(uniques .. as_in_keys(meta.unique), name) end
  redis.pcall('SREM', cancelled_beside(index), name)
end

-- What becomes of the record of a job that a full queue has dropped.

local function note_loss(records, index, item, ms, ttl)
  local known, job = pcall(cjson.decode, item)
  local name = known and type(job) == 'table' and (job.id or job.job_id)
  if type(name) ~= 'string' then return end
  -- As ids stand in keys.
  name = string.gsub(name, '[^A-Za-z0-9_.+@=-]', function(character)
    return string.format('%%%02X', string.byte(character))
  end)
  local record = records .. name
  if close(record, index, name, 'failed', ms, ttl) then
    redis.call('HSET', record, 'error', 'dropped from a full queue', 'error_type', 'Overflow')
  end
end

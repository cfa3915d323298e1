-- What becomes of the record, the unique key and the cancel mark of a job that a full queue has
-- dropped or moved aside. One that is compressed cannot be read here: the caller gets those.

-- Include: jobnames
-- `uniques` is the beginning of the names of unique keys.
local function note_loss(records, index, item, ms, ttl, uniques)
  local name, unique = names_in(item)
  if not name then return end
  local record = records .. name
  if close(record, index, name, 'failed', ms, ttl) then
    redis.call('HSET', record, 'error', 'dropped from a full queue', 'error_type', 'Overflow')
  end
  if unique then forget(uniques .. unique, name) end
  redis.pcall('SREM', cancelled_beside(index), name)
end

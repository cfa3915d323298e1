-- Room in a list for new jobs, made by the policy if need be.

local function json_of(item)
  if string.sub(item, 1, 1) == '{' and pcall(cjson.decode, item) then return item end
  return cjson.encode(item)
end

local function letter_of(item, queue, lane, at, ms)
  return string.format(
    '{"original_job":%s,"error":"the queue was full","attempt_count":0,"first_failed_at":"%s",'
      .. '"last_failed_at":"%s","queue_name":%s,"lane":%s,"reason":"overflow",'
      .. '"overflow_policy":"dlq","buried_ms":%.0f}', json_of(item), at, at, cjson.encode(queue), cjson.encode(lane), ms)
end

-- Of a list far above its limit no more than this goes at once, beside room for the new jobs:
-- others wait while a script runs.
local MOST_LEAVING = 1000
-- Nor more than this of compressed ones, which the caller gets.
local MOST_PACKED_BYTES = 1048576

-- The counters must be numbers before anything leaves a list for which they are to count.
local function fault_in_counters(counters)
  for _, count in ipairs(redis.call('HMGET', counters, 'added', 'dropped', 'overflowed')) do
    if count and not string.match(count, '^-?%d+$') then
      return redis.error_reply('ERR a counter of the queue is not a number: ' .. count)
    end
  end
end

-- What a full list costs its oldest jobs. Returns whether there is room now ('again' if so many
-- compressed ones have left that others stay for now: who adds many jobs has the script called again,
-- who adds one may add it), how many jobs were moved aside and how many dropped, or the error to
-- answer with. Nothing is written unless there will be room. `lost` is called with each of them, but
-- compressed ones are added to `packed`: the caller of the script notes those by `note_losses`.
local function make_room(list, overflow, counters, state, index, queue, side, policy, most,
                         most_bytes, most_overflow, count, bytes, at, ms, lane, lost, packed)
  local length = redis.call('LLEN', list)
  local stored = redis.call('HGET', state, 'bytes')
  local excess = most > 0 and length + count - most or 0
  local excess_bytes = most_bytes > 0 and (tonumber(stored or 0) or 0) + bytes - most_bytes or 0
  if excess <= 0 and excess_bytes <= 0 then return true, 0, 0 end
  local fits = (most == 0 or count <= most) and (most_bytes == 0 or bytes <= most_bytes)
  if not fits or (policy ~= 'dlq' and policy ~= 'drop_oldest') then return false, 0, 0 end
  local first, step = side == 'left' and -1 or 0, side == 'left' and -1 or 1
  local leaving, freed, packed_bytes, most_leaving = {}, 0, 0, MOST_LEAVING + count
  while (#leaving < excess or freed < excess_bytes) and #leaving < most_leaving
    and packed_bytes < MOST_PACKED_BYTES do
    local item = redis.call('LINDEX', list, first + step * #leaving)
    if not item then return false, 0, 0 end
    leaving[#leaving + 1] = item
    freed = freed + #item
    if string.sub(item, 1, 2) == 'Z:' then packed_bytes = packed_bytes + #item end
  end
  local room = ((#leaving < excess or freed < excess_bytes) and #leaving < most_leaving) and 'again'
    or true
  local fault = fault_in('LIST', overflow) or fault_in_counters(counters) or fault_in_indexes(index)
  if fault then return false, 0, 0, fault end
  if policy == 'dlq' and redis.call('LLEN', overflow) + #leaving > most_overflow then
    return false, 0, 0
  end
  redis.call('HINCRBY', counters, policy == 'dlq' and 'overflowed' or 'dropped', #leaving)
  if stored then
    redis.call('HSET', state, 'bytes', math.max(0, (tonumber(stored) or 0) - freed))
  end
  if policy == 'dlq' then
    for _, item in ipairs(leaving) do
      redis.call('RPUSH', overflow, letter_of(item, queue, lane, at, ms))
    end
  end
  redis.call('LTRIM', list, side == 'left' and 0 or #leaving, side == 'left' and -#leaving - 1 or -1)
  for _, item in ipairs(leaving) do
    if string.sub(item, 1, 2) == 'Z:' then packed[#packed + 1] = item else lost(item) end
  end
  if policy == 'dlq' then return room, #leaving, 0 end
  return room, 0, #leaving
end

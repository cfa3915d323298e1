-- A run. KEYS 1 to 7 are its own: record, events, feed, processed ids, failures, what is known of
-- them, and starts of tasks.

-- Include: calendar
local ALL = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]}
local FINAL = {completed = 1, failed = 1, cancelled = 1}
-- Must exceed the client's retry window (REPEAT_WITHIN_S).
local REMEMBER_MS, MOST_REMEMBERED = 120000, 10000

-- What a call with this token was answered; false if there was none.
local function answered(token)
  return redis.call('HGET', KEYS[3], 'call:' .. token)
end

-- Keeps the reply for a repeated call; deletes old ones.
local function remember(token, answer)
  local latest = (tonumber(redis.call('HGET', KEYS[3], 'calls') or 0) or 0) + 1
  redis.call('HSET', KEYS[3], 'calls', latest, 'call:' .. token, answer, 'called:' .. latest,
    now .. ' ' .. token)
  local first = tonumber(redis.call('HGET', KEYS[3], 'first_call') or 1) or 1
  local oldest = first
  while oldest < latest and oldest < first + 2 do
    local known = redis.call('HGET', KEYS[3], 'called:' .. oldest) or '0 '
    local ms, old = string.match(known, '^(%d+) (.*)$')
    if now - (ms or 0) < REMEMBER_MS and latest - oldest < MOST_REMEMBERED then break end
    redis.call('HDEL', KEYS[3], 'called:' .. oldest, 'call:' .. (old or ''))
    oldest = oldest + 1
  end
  if oldest > first then redis.call('HSET', KEYS[3], 'first_call', oldest) end
end

local function number_in(field)
  return tonumber(redis.call('HGET', KEYS[1], field) or 0) or 0
end

-- Adds an event to the feed; `data` is JSON. Who comes later begins with how things stand now, so
-- all else is to be written before. Every event of a run that has ended ends those who read.
local function tell(cap, kind, data)
  local status = redis.call('HGET', KEYS[1], 'status')
  local number = (tonumber(redis.call('HGET', KEYS[3], 'seq') or 0) or 0) + 1
  local fields = {'type', kind, 'data', data, 'ms', now}
  if FINAL[status] then fields[7], fields[8] = 'final', '1' end
  local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', cap, number .. '-0', unpack(fields))
  if type(added) == 'table' then
    -- The number was lost, and the events were not: go on after the last of them.
    local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
    number = (last and string.match(last[1], '^%d+') or 0) + 1
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', cap, number .. '-0', unpack(fields))
  end
  if FINAL[status] then
    redis.call('HSET', KEYS[3], 'final', number)
  else
    redis.call('HDEL', KEYS[3], 'final')
  end
  redis.call('HSET', KEYS[3], 'seq', number, 'state_seq', number, 'state', cjson.encode({
    status = status, version = number_in('version'),
    processed = redis.call('SCARD', KEYS[4]), failures = redis.call('ZCARD', KEYS[5])}))
  redis.pcall('PUBLISH', KEYS[2], number)  -- where that is not allowed, readers look by themselves
end

-- Gives all keys of a final run an end, unless a failure in it is open; takes it away otherwise.
-- The end does not move: keys that are written later get what is left of the time.
local function see_to_end(keep_ms)
  local known = redis.call('HMGET', KEYS[1], 'status', 'ends_ms')
  local ends = tonumber(known[2] or nil)
  if FINAL[known[1]] and redis.call('ZCARD', KEYS[5]) == 0 then
    if not ends then
      ends = now + keep_ms
      redis.call('HSET', KEYS[1], 'ends_ms', ends)
    end
    for _, key in ipairs(ALL) do redis.call('PEXPIRE', key, math.max(ends - now, 1)) end
  elseif ends then
    redis.call('HDEL', KEYS[1], 'ends_ms')
    for _, key in ipairs(ALL) do redis.call('PERSIST', key) end
  end
end

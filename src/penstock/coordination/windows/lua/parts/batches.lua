-- Batches of windows: when they are due, their events, and how one becomes a job of a queue
-- or a message of a topic. KEYS and ARGV are those that all scripts of windows begin with.

-- How the keys of a batch end that have the user's key, and its items.
local KEY, ITEMS = ':' .. ARGV[17], ':' .. ARGV[18]

-- Ms and µs of a time such as '1769250600.123456'. By its digits: as a number it is not exact.
local function ms_of(text)
  local seconds, parts = string.match(text or '', '^(%d+)%.?(%d*)$')
  if not seconds then return nil end
  local micros = seconds * 1000000 + string.sub(parts .. '000000', 1, 6)
  return math.floor(micros / 1000), micros
end

local function text_of(ms)
  return string.format('%.0f', ms)
end

-- Publishes an event of a batch, as feeds do. No item is refused because this fails: without the
-- right to publish there are no wake-ups, and readers poll.
local function tell(what, batch, key, more)
  local data = '{"batch_id":' .. cjson.encode(batch) .. ',"key":' .. cjson.encode(key) .. more .. '}'
  local number = redis.pcall('HINCRBY', KEYS[3], 'seq', 1)
  if type(number) == 'table' then return end
  local function add()
    return redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[15], text_of(number) .. '-0',
      'type', what, 'data', data, 'ms', text_of(now))
  end
  if type(add()) == 'table' then
    -- The number was lost, and the events were not: go on after the last of them.
    local last = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
    if not last[1] then return end
    number = string.match(last[1][1], '^%d+') + 1
    redis.call('HSET', KEYS[3], 'seq', text_of(number))
    add()
  end
  redis.pcall('PUBLISH', KEYS[2], text_of(number))
end

-- The error to answer with if a key of what gets the batches is of another type.
local function fault_in_target()
  if ARGV[2] == 'topic' then return fault_in('STREAM', KEYS[4]) end
  return fault_in('LIST', KEYS[4]) or fault_in('HASH', KEYS[5]) or fault_in('HASH', KEYS[6])
end

-- Takes over a batch that another program has begun, as it has no count of bytes: its items may be
-- one JSON text, and its keys have an end. Returns its bytes.
local function adopt(pointer, base)
  local list, bytes = base .. ITEMS, 0
  if redis.call('TYPE', list).ok == 'string' then
    local text = redis.call('GET', list)
    local known, items = pcall(cjson.decode, text)
    if not known or type(items) ~= 'table' then items = {text} end
    for place, item in ipairs(items) do items[place] = cjson.encode(item) end
    redis.call('DEL', list)
    for _, item in ipairs(items) do redis.call('RPUSH', list, item) end
  end
  for _, item in ipairs(redis.call('LRANGE', list, 0, -1)) do bytes = bytes + #item + 1 end
  for _, name in ipairs({pointer, list, base .. KEY, base .. ':started_at'}) do
    redis.call('PERSIST', name)
  end
  return bytes
end

-- Why a batch is due now; nil if it is not. Its age comes first.
local function why_due(started, last)
  if now >= started + ARGV[13] then return 'max_age' end
  if now >= last + ARGV[14] then return 'idle' end
end

-- Hands a batch over and forgets it, both or none. Returns 1 closed, 0 the queue is full, -1 there
-- is no such partition, 2 it had no items; how long the queue is; jobs that had to go for it and
-- that only the caller can read; the error to answer with if a key is of another type.
local function close_batch(pointer, window, key, batch, reason)
  local base, is_queue, waiting = ARGV[1] .. batch, ARGV[2] == 'queue', 0
  local policy, most, most_bytes = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local names = {pointer, base .. KEY, base .. ITEMS, base .. ':started_at',
    base .. ':last_activity', base .. ':bytes'}
  local fault = fault_in('LIST', names[3])
  if fault then return 0, 0, nil, fault end
  local count = redis.call('LLEN', names[3])
  if count == 0 then
    redis.call('DEL', unpack(names))
    redis.call('ZREM', KEYS[1], window)
    return 2, 0
  end
  if is_queue then
    waiting = redis.call('LLEN', KEYS[4])
    if policy == 'block' and most > 0 and waiting >= most then return 0, waiting end
  elseif redis.call('EXISTS', KEYS[4]) == 0 then
    return -1, 0
  end
-- Include: records
-- Include: losses
-- Include: overflow
-- Include: lanes
  local started, last = unpack(redis.call('MGET', names[4], names[5]))
  started = ms_of(started) or now
  last = ms_of(last) or started
  local job = '{"batch_id":' .. cjson.encode(batch) .. ',' .. ARGV[11] .. ':' .. cjson.encode(key)
    .. ',' .. ARGV[12] .. ':[' .. table.concat(redis.call('LRANGE', names[3], 0, -1), ',')
    .. '],"started_at":"' .. iso(started) .. '","ended_at":"' .. iso(now)
    .. '","last_activity":"' .. iso(last) .. '","started_ms":' .. text_of(started)
    .. ',"ended_ms":' .. text_of(now) .. ',"count":' .. count .. ',"reason":' .. cjson.encode(reason)
    .. '}'
  local packed = {}
  if is_queue then
    local side = redis.call('HGET', KEYS[5], 'side') or 'right'
    if most_bytes > 0 or (most > 0 and waiting >= most) then
      local room, moved, dropped, wrong = make_room(KEYS[4], KEYS[7], KEYS[6], KEYS[5], ARGV[9],
        ARGV[3], side, policy, most, most_bytes, tonumber(ARGV[7]), 1, #job, iso(now), now, '',
        function(item) note_loss(ARGV[8], ARGV[9], item, now, ARGV[16], ARGV[10]) end, packed)
      if not room then return 0, waiting, nil, wrong end
    end
    redis.pcall('HINCRBY', KEYS[6], 'added', 1)
    if most_bytes > 0 then redis.call('HSETNX', KEYS[5], 'bytes', 0) end
    put(KEYS[4], KEYS[8], KEYS[9], KEYS[5], side, '', job, false)
    wake(KEYS[8], 1)
  else
    redis.call('XADD', KEYS[4], '*', 'payload', job, 'key', key)
  end
  redis.call('DEL', unpack(names))
  redis.call('ZREM', KEYS[1], window)
  redis.pcall('HINCRBY', KEYS[3], 'closed_' .. reason, 1)
  tell('closed', batch, key, ',"count":' .. count .. ',"reason":' .. cjson.encode(reason)
    .. ',"started_ms":' .. text_of(started) .. ',"last_ms":' .. text_of(last))
  return 1, waiting + 1, packed
end

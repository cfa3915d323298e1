-- add_to_window: add an item to the open batch of a window; close and open batches as need be.
--
-- Unchecked: what gets the batches may be of two kinds
--
-- KEYS[1]  ZSET    windows with an open batch, by the time it is due
-- KEYS[2]  STREAM  events
-- KEYS[3]  HASH    the number of the latest event, and counts
-- KEYS[4]  LIST    the queue's plain list, or the STREAM of a partition
-- KEYS[5]  HASH    the queue's state
-- KEYS[6]  HASH    the queue's counters
-- KEYS[7]  LIST    the queue's overflow
-- KEYS[8]  LIST    the queue's ring of fair lanes
-- KEYS[9]  ZSET    the queue's parked lanes
-- KEYS[10] STRING  id of the window's open batch
-- KEYS[11] ZSET    ids of items by the time they were added, in µs
-- ARGV[1]  str   beginning of the names of the keys of batches
-- ARGV[2]  str   'queue' or 'topic', of which the keys of the queue may be any
-- ARGV[3]  str   the queue's name
-- ARGV[4]  str   policy for a full queue: 'block' leaves the batch open
-- ARGV[5]  int   most jobs in the list, 0 for any number
-- ARGV[6]  int   most bytes in the queue's lists, 0 for any number
-- ARGV[7]  int   most jobs in the overflow
-- ARGV[8]  str   beginning of the names of the queue's records
-- ARGV[9]  str   beginning of the names of the queue's indexes by state
-- ARGV[10] str   beginning of the names of the queue's unique keys
-- ARGV[11] str   JSON name of the key's field
-- ARGV[12] str   JSON name of the items' field
-- ARGV[13] int   ms from the first item on after which a batch is due
-- ARGV[14] int   ms from the latest item on after which a batch is due
-- ARGV[15] int   about so many events are kept
-- ARGV[16] int   ms for which a final record of the queue is kept
-- ARGV[17] str   last word of the key of a batch that has the user's key
-- ARGV[18] str   last word of the key of a batch that has its items
-- ARGV[19] int   most items in a batch
-- ARGV[20] int   most bytes of items in a batch
-- ARGV[21] int   ms for which the repeat of an id is recognised
-- ARGV[22] str   the window as it stands in keys
-- ARGV[23] str   the user's key
-- ARGV[24] str   the item, JSON
-- ARGV[25] str   its id, '' for none
-- ARGV[26] str   id of a new batch
-- ARGV[27] str   id of the item's own batch if it is to go to the high lane at once, else ''
-- ARGV[28] int   most windows with an open batch, 0 for any number
--
-- Returns  list  1 added, 2 it had been added, 3 it went to the high lane, 0 the queue is full and
--                nothing was stored, -1 there is no such partition, -2 as many batches are open
--                as may be and nothing was stored; id of the batch, '' if it is
--                closed; its items; id of a batch that was closed, or ''; length of the queue;
--                jobs that had to go for it and are compressed, see `note_losses`

-- Include: types
-- Include: time
-- Include: batches
local pointer, window, key, item, id = KEYS[10], ARGV[22], ARGV[23], ARGV[24], ARGV[25]
local micros = time[1] * 1000000 + time[2]
local fault = fault_in('ZSET', KEYS[1]) or fault_in('ZSET', KEYS[11]) or fault_in('STRING', pointer)
  or fault_in_target() or ARGV[27] ~= '' and fault_in('LIST', KEYS[4] .. ':high')
if fault then return fault end
if ARGV[2] == 'topic' and redis.call('EXISTS', KEYS[4]) == 0 then return {-1, '', 0, '', 0, {}} end
local batch = redis.call('GET', pointer)
local size, bytes, started, last, started_micros = 0, 0, now, now, micros
if batch then
  local base = ARGV[1] .. batch
  local stored = redis.call('MGET', base .. ':started_at', base .. ':last_activity', base .. ':bytes')
  local is_text = not stored[3] and redis.call('TYPE', base .. ITEMS).ok == 'string'
  local odd = not is_text and fault_in('LIST', base .. ITEMS)
  if odd then return odd end
  bytes = tonumber(stored[3]) or adopt(pointer, base)
  size = redis.call('LLEN', base .. ITEMS)
  started, started_micros = ms_of(stored[1])
  if not started or started > now then
    -- Its time was deleted, or the clock set back: it starts again, and no item is lost.
    started, started_micros = now, micros
  end
  last = ms_of(stored[2]) or started
end

if id ~= '' then
  local since = tonumber(redis.call('ZSCORE', KEYS[11], id) or 0)
  if since > micros - ARGV[21] * 1000 then
    if since % 1 > 0 then return {2, ARGV[27], ARGV[27] ~= '' and 1 or 0, '', 0, {}} end
    -- It is in the open batch if that is not younger.
    if size > 0 and since >= started_micros then return {2, batch, size, '', 0, {}} end
    return {2, '', 0, '', 0, {}}
  end
end

-- Others are forgotten now and then, more of them than come meanwhile. Half a µs marks the id of an
-- item that went to the high lane, and so is in no batch.
local function remember(forgets, is_fast)
  if id == '' then return end
  if forgets then
    local old = redis.call('ZRANGEBYSCORE', KEYS[11], '-inf',
      text_of(micros - ARGV[21] * 1000), 'LIMIT', 0, 20)
    -- Before the new one: the id itself may be among them.
    if old[1] then redis.call('ZREM', KEYS[11], unpack(old)) end
  end
  redis.call('ZADD', KEYS[11], text_of(micros) .. (is_fast and '.5' or ''), id)
  redis.call('PEXPIRE', KEYS[11], ARGV[21])
end

if ARGV[27] ~= '' then
  local list, most, most_bytes = KEYS[4] .. ':high', tonumber(ARGV[5]), tonumber(ARGV[6])
-- Include: records
-- Include: lanes
  local at, ms = iso(now), text_of(now)
  local job = '{"batch_id":' .. cjson.encode(ARGV[27]) .. ',' .. ARGV[11] .. ':'
    .. cjson.encode(key) .. ',' .. ARGV[12] .. ':[' .. item .. '],"started_at":"' .. at
    .. '","ended_at":"' .. at .. '","last_activity":"' .. at .. '","started_ms":' .. ms
    .. ',"ended_ms":' .. ms .. ',"count":1,"reason":"fast_path","fast_path":true}'
  local length = redis.call('LLEN', list)
  local used = tonumber(redis.call('HGET', KEYS[5], 'bytes') or 0) or 0
  -- For want of room it goes into the batch: no other job has to go for it.
  if (most == 0 or length < most) and (most_bytes == 0 or used + #job <= most_bytes) then
    redis.pcall('HINCRBY', KEYS[6], 'added', 1)
    redis.call('HSETNX', KEYS[5], 'lanes', 1)
    if most_bytes > 0 then redis.call('HSETNX', KEYS[5], 'bytes', 0) end
    remember(true, true)
    local side = redis.call('HGET', KEYS[5], 'side') or 'right'
    put(KEYS[4], KEYS[8], KEYS[9], KEYS[5], side, 'high', job, false)
    wake(KEYS[8], 1)
    redis.pcall('HINCRBY', KEYS[3], 'fast', 1)
    tell('fast', ARGV[27], key, ',"count":1')
    return {3, ARGV[27], 1, '', length + 1, {}}
  end
end

-- The items of a batch that may have to be opened.
local fresh = ARGV[1] .. ARGV[26] .. ITEMS
if size == 0 then
  local odd = fault_in('LIST', fresh)
  if odd then return odd end
  local most_open = tonumber(ARGV[28])
  if most_open > 0 and redis.call('ZCARD', KEYS[1]) >= most_open
    and not redis.call('ZSCORE', KEYS[1], window) then
    return {-2, '', 0, '', 0, {}}
  end
end
local closed, length, packed = '', 0, {}
local most, most_bytes, weight = tonumber(ARGV[19]), tonumber(ARGV[20]), #item + 1
if size > 0 then
  local over = size >= most and 'max_size' or bytes + weight > most_bytes and 'max_bytes'
  -- A batch that was not closed in time takes no more items.
  local reason = why_due(started, last) or over
  if reason then
    local done, gone
    local odd = fault_in('LIST', fresh)
    if odd then return odd end
    done, length, gone, odd = close_batch(pointer, window, key, batch, reason)
    if odd then return odd end
    if done == 1 then
      closed, packed, size = batch, gone, 0
    elseif over then
      return {done, '', size, '', length, {}}
    end
  end
end

local at = time[1] .. '.' .. string.format('%06d', time[2])
if size == 0 then
  batch, started, bytes = ARGV[26], now, 0
  local base = ARGV[1] .. batch
  redis.call('MSET', pointer, batch, base .. KEY, key, base .. ':started_at', at,
    base .. ':last_activity', at, base .. ':bytes', weight)
else
  local base = ARGV[1] .. batch
  redis.call('MSET', base .. ':last_activity', at, base .. ':bytes', bytes + weight)
  if started_micros == micros then
    redis.call('MSET', base .. KEY, key, base .. ':started_at', at)
  end
end
remember(size % 10 == 0)
local count = redis.call('RPUSH', ARGV[1] .. batch .. ITEMS, item)
local due = math.min(started + ARGV[13], now + ARGV[14])
redis.call('ZADD', KEYS[1], text_of(due), window)
if count == 1 or (count < most and math.floor(last / 1000) ~= math.floor(now / 1000)) then
  tell(count == 1 and 'open' or 'update', batch, key, ',"count":' .. count .. ',"started_ms":'
    .. text_of(started) .. ',"due_ms":' .. text_of(due))
end
if count >= most then
  local done, gone
  done, length, gone = close_batch(pointer, window, key, batch, 'max_size')
  if done == 1 then
    for _, one in ipairs(gone) do packed[#packed + 1] = one end
    return {1, batch, count, batch, length, packed}
  end
end
return {1, batch, count, closed, length, packed}

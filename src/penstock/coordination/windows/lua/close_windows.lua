-- close_windows: close the open batches of some windows, or those that are due.
-- Flags: allow-oom
-- Unchecked: what gets the batches may be of two kinds, and one bad window holds up no other
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
-- ARGV[19] str   beginning of the names of the keys of windows
-- ARGV[20] str   what windows begin with before the user's key
-- ARGV[21] int   most batches to close
-- ARGV[22] str   why they are closed; '' for those that are due
-- ARGV[23..] str windows, as they stand in keys
--
-- Returns  list  1, or 0 if the queue is full, or -1 if there is no such partition; ms until the
--                next is due, -1 for none; length of the list; ids of the batches closed; jobs
--                that had to go for them and are compressed, see `note_losses`; then, if any of
--                those that are due cannot be closed because of what others have stored, for each
--                the window and the error: they are put off, and hold up no other

-- Include: types
-- Include: time
-- Include: batches
local wrong = fault_in('ZSET', KEYS[1]) or fault_in_target()
if wrong then return wrong end
-- Needs no memory: from here on nothing is refused for the want of it.
redis.call('ZREM', KEYS[1], '')
-- Others wait while a script runs.
local MOST_BYTES, PUT_OFF_MS = 1048576, 10000

local function user_key(window)
  return (string.gsub(string.sub(window, #ARGV[20] + 1), '%%(%x%x)', function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

local windows = {unpack(ARGV, 23)}
if ARGV[22] == '' then
  windows = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text_of(now), 'LIMIT', 0, ARGV[21])
end
local status, length, bytes, closed, packed, broken = 1, 0, 0, {}, {}, {}

-- False if no more are to be closed now.
local function close(window)
  local pointer = ARGV[19] .. window .. ':current'
  local batch = redis.call('GET', pointer)
  if not batch then
    redis.call('ZREM', KEYS[1], window)
  else
    local base, reason = ARGV[1] .. batch, ARGV[22]
    local stored = redis.call('MGET', base .. ':started_at', base .. ':last_activity', base .. ':bytes')
    if not stored[3] then adopt(pointer, base) end
    if reason == '' then
      local started = ms_of(stored[1]) or 0
      -- The last caller may have had other limits: then only the reason is a guess.
      reason = why_due(started, ms_of(stored[2]) or started) or 'idle'
    end
    local done, gone, fault
    done, length, gone, fault = close_batch(pointer, window, user_key(window), batch, reason)
    if fault then error(fault.err, 0) end
    if done <= 0 then
      status = done
      return false
    end
    if done == 1 then closed[#closed + 1] = batch end
    for _, item in ipairs(gone or {}) do packed[#packed + 1] = item end
    bytes = bytes + (tonumber(stored[3]) or 0)
    if bytes > MOST_BYTES then return false end
  end
  return true
end

for _, window in ipairs(windows) do
  local fine, goes_on = pcall(close, window)
  if not fine then
    local fault = type(goes_on) == 'table' and goes_on.err or tostring(goes_on)
    if ARGV[22] ~= '' and #closed == 0 then return redis.error_reply(fault) end
    redis.call('ZADD', KEYS[1], text_of(now + PUT_OFF_MS), window)
    broken[#broken + 1], broken[#broken + 2] = window, fault
  elseif not goes_on then
    break
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = first[2] and math.max(0, first[2] - now) or -1
return {status, wait, length, closed, packed, broken[1] and broken or nil}

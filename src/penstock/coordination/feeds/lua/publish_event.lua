-- publish_event: add the next numbered event to a feed, and wake its readers.
--
-- KEYS[1]  STREAM  the events, with their numbers as ids
-- KEYS[2]  HASH    the feed's state
-- ARGV[1]  str     what kind of event it is
-- ARGV[2]  str     its data
-- ARGV[3]  str     the state after it, '' for none
-- ARGV[4]  int     1 if nothing comes after it
-- ARGV[5]  int     about how many events are kept
-- ARGV[6]  int     ms for which a feed is kept after its final event
-- ARGV[7]  str     the event's own id, by which a repeat is recognised
-- ARGV[8]  str     channel that gets a copy, '' for none
-- ARGV[9]  str     the copy
-- ARGV[10] int     1 if it may make a new feed
--
-- Also writes the fields `id:<event id>` and `of:<number>` of the state, of the latest events.
--
-- Returns  int  its number; if it was a repeat, that of the first
--           -1  the feed has had its final event; nothing written
--           -2  there is no such feed, and it may not make one; nothing written

-- Include: time
local REMEMBERED = 500
local known = redis.call('HMGET', KEYS[2], 'id:' .. ARGV[7], 'final', 'seq')
if known[1] then return tonumber(known[1]) end
if tonumber(known[2] or nil) then return -1 end
local latest = tonumber(known[3])
if not latest then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if not last and ARGV[10] ~= '1' then return -2 end
  latest = last and string.match(last[1], '^%d+') or 0
end
local number = string.format('%.0f', latest + 1)

local fields = {'type', ARGV[1], 'data', ARGV[2], 'ms', string.format('%.0f', now)}
if ARGV[4] == '1' then
  fields[7], fields[8] = 'final', '1'
end
local added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], number .. '-0', unpack(fields))
if type(added) == 'table' then return added end
redis.call('HSET', KEYS[2], 'seq', number, 'id:' .. ARGV[7], number, 'of:' .. number, ARGV[7])
local old = 'of:' .. string.format('%.0f', number - REMEMBERED)
local old_id = redis.call('HGET', KEYS[2], old)
if old_id then redis.call('HDEL', KEYS[2], old, 'id:' .. old_id) end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], 'state', ARGV[3], 'state_seq', number) end
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], 'final', number)
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  redis.call('PEXPIRE', KEYS[2], ARGV[6])
end
-- Readers who are not woken look by themselves. Nor does a copy that may not be sent undo the event.
redis.pcall('PUBLISH', KEYS[1], number)
if ARGV[8] ~= '' then redis.pcall('PUBLISH', ARGV[8], ARGV[9]) end
return tonumber(number)

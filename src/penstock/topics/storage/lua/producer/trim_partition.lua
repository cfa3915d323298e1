-- trim_partition: drop old messages, but none that a group still needs, unless there are too many of all;
-- and free large bodies whose messages are gone, or that every group is past.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    the partition's counters
-- KEYS[3]  ZSET    names of large bodies
-- ARGV[1]  int     messages to keep, 0 for any number
-- ARGV[2]  int     ms for which messages are kept, 0 for ever
-- ARGV[3]  int     bytes to keep, 0 for any number
-- ARGV[4]  int     messages above which even needed ones are dropped, 0 for never
-- ARGV[5]  str     what keys of large bodies begin with; a name completes the key
-- ARGV[6]  int     1: a partition without any group keeps all its messages
--
-- Returns  list  messages dropped, messages lost that a group still needed (to the hard cap, or to
--                another program that trimmed the stream), large bodies freed
--
-- One call drops about AT_ONCE messages for each limit; the caller repeats it while much was dropped.

-- Few enough to trim exactly; more go by whole nodes of the stream.
local ONE_BY_ONE = 200
local AT_ONCE = 10000

if redis.call('EXISTS', KEYS[1]) == 0 then return {0, 0, 0} end

local function numbers(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function is_before(one, other)
  local ms, seq = numbers(one)
  local other_ms, other_seq = numbers(other)
  return ms < other_ms or (ms == other_ms and seq < other_seq)
end
-- The highest number that may follow the milliseconds; a group may stand at it.
local LAST = 18446744073709551615
local function after(id)
  local ms, seq = numbers(id)
  if seq >= LAST then return string.format('%.0f-0', ms + 1) end
  return string.format('%.0f-%.0f', ms, seq + 1)
end

local function as_table(list)
  local facts = {}
  for i = 1, #list, 2 do facts[list[i]] = list[i + 1] end
  return facts
end

-- Messages that were dropped before a group was given them: all that were ever added, less those it
-- was given, less those it still has before it. The last number is known without counting only at
-- either end; in between it is found later. The group's count is set right, so that each loss is
-- found once. Servers before 7 do not count.
local function find_unread_losses()
  local stream, lost = as_table(redis.call('XINFO', 'STREAM', KEYS[1])), 0
  local added, first = stream['entries-added'], stream['first-entry']
  if not added then return 0 end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local facts, ahead = as_table(group), nil
    local at = facts['last-delivered-id']
    if not first or at == stream['last-generated-id'] then
      ahead = 0
    elseif is_before(at, first[1]) then
      ahead = stream['length']
    end
    if ahead and facts['entries-read'] ~= added - ahead then
      if facts['entries-read'] then
        lost = math.max(lost, added - ahead - facts['entries-read'])
      end
      redis.call('XGROUP', 'SETID', KEYS[1], facts['name'], at, 'ENTRIESREAD',
        string.format('%.0f', added - ahead))
    end
  end
  return lost
end
local unread_lost = find_unread_losses()

-- A group needs what is pending, and what follows the last message it was given.
local needed
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local facts = as_table(group)
  local lowest = redis.call('XPENDING', KEYS[1], facts['name'])[2]
    or after(facts['last-delivered-id'])
  if not needed or is_before(lowest, needed) then needed = lowest end
end

local function drop_before(id)
  if needed and is_before(needed, id) then id = needed end
  local gone = redis.call('XTRIM', KEYS[1], 'MINID', '~', id, 'LIMIT', AT_ONCE)
  -- So few: not the limit has stopped it, and of the rest no more than a node is to go.
  if gone * 2 <= AT_ONCE then gone = gone + redis.call('XTRIM', KEYS[1], 'MINID', '=', id) end
  return gone
end

local dropped, lost, freed = 0, 0, 0
local may_drop = needed or ARGV[6] ~= '1'
if may_drop and ARGV[2] ~= '0' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  dropped = dropped + drop_before(string.format('%.0f-0', math.max(0, now - ARGV[2])))
end

local length = redis.call('XLEN', KEYS[1])
local keep = length
if ARGV[1] ~= '0' then keep = math.min(keep, tonumber(ARGV[1])) end
if ARGV[3] ~= '0' and length > 0 then
  local size = redis.call('MEMORY', 'USAGE', KEYS[1])
  if size > tonumber(ARGV[3]) then keep = math.min(keep, math.floor(length * ARGV[3] / size)) end
end
local excess = may_drop and math.min(length - keep, AT_ONCE) or 0
if excess > 0 and not needed then
  dropped = dropped + redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', length - excess)
elseif excess > 0 then
  if excess > ONE_BY_ONE then
    local gone = redis.call('XTRIM', KEYS[1], 'MINID', '~', needed, 'LIMIT', excess)
    dropped, excess = dropped + gone, excess - gone
  end
  if excess > 0 then
    local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(excess, ONE_BY_ONE))
    dropped = dropped + drop_before(after(oldest[#oldest][1]))
  end
end

local above, left = 0, redis.call('XLEN', KEYS[1])
if ARGV[4] ~= '0' then above = math.min(left - ARGV[4], AT_ONCE) end
if above > 0 then
  lost = needed and above or 0
  if needed then
    if above > ONE_BY_ONE then
      lost = lost - redis.call('XTRIM', KEYS[1], 'MINID', '~', needed, 'LIMIT', above)
    end
    -- No more than a node of the stream by now.
    if lost > 0 then
      lost = lost - #redis.call('XRANGE', KEYS[1], '-', '(' .. needed, 'COUNT', lost)
    end
  end
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', left - above)
  dropped = dropped + above
  if lost > 0 then find_unread_losses() end
end
local all_lost = lost + unread_lost
if all_lost > 0 then redis.call('HINCRBY', KEYS[2], 'lost', all_lost) end

for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, ONE_BY_ONE - 1)) do
  local name, id = string.match(member, '^(%S+) (%d+%-%d+)$')
  if name then
    local past = needed and is_before(id, needed)
    -- An id that the server does not take is that of no message.
    if past or not redis.pcall('XRANGE', KEYS[1], id, id)[1] then
      redis.call('DEL', ARGV[5] .. name)
      redis.call('ZREM', KEYS[3], member)
      freed = freed + 1
    end
  end
end
return {dropped, all_lost, freed}

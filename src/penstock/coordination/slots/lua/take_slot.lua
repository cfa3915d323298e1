-- take_slot: take slots for the foremost callers of a process, in the order in which all callers
-- came; let the process stand in line for those who get none.
--
-- A process has one ticket, which stands in line where its foremost caller came. Callers of others
-- that may have come before are left their slots. A process that does not take what it could have
-- for PASSED_OVER_MS is passed over until it asks. Callers of earlier versions have a ticket each, and
-- number it: they ask every now and then only, and are passed over when their tickets are void.
--
-- Flags: allow-oom  work that drains a full server needs its slots
--
-- KEYS[1]  ZSET  holders by the end of their lease; its name is the channel of the hint
-- KEYS[2]  ZSET  tickets of processes whose callers wait, by when the foremost came, in server ms
-- KEYS[3]  HASH  from a ticket to the time until which it counts; `n:<ticket>` is how many callers
--                wait with it, `turn:<ticket>` since when there is a slot for it
-- KEYS[4]  HASH  the latest fence; `number`, after which earlier versions number their tickets: it
--                follows the clock while anyone waits, so that they stand where they came
-- ARGV[1]  str   the ticket, '' to stand in no line
-- ARGV[2]  int   how many slots there are
-- ARGV[3]  int   ms for which the ticket counts
-- ARGV[4]  int   1 if these tokens may have slots already, since an answer was lost
-- ARGV[5]  int   ms for which the latest fence is kept
-- ARGV[6]  int   how many callers wait in the process, these included
-- ARGV[7]  str   when the next caller came, if there are more than these: in server ms, or negated
--                how many ms ago
-- ARGV[8..]  str  for each caller its token, ms for which it takes a slot, and when it came
--
-- Returns  list  the server's ms; how many ms it will be until there may be a slot for the next
--                caller, -1 if unknown; then for each caller the fence of its slot, 0 for
--                none: the holder is '<fence>:<token>'

-- Include: time
-- Include: expiry
redis.call('ZREM', KEYS[1], '')  -- a write that needs no memory: the others may follow it
-- Include: sweep
sweep_upto(KEYS[1], now)
local ended = redis.call('ZCOUNT', KEYS[1], '-inf', now)

-- Most tickets of others that one call reads; it removes a fifth as many.
local PASSED_OVER_MS, MOST_SEEN = 200, 500
local ticket, limit = ARGV[1], tonumber(ARGV[2])
local function when(came)
  came = tonumber(came)
  return came > 0 and came or now + came
end
local callers = {}
for place = 8, #ARGV, 3 do
  callers[#callers + 1] = {token = ARGV[place], lease = tonumber(ARGV[place + 1]),
    came = when(ARGV[place + 2])}
end

local function hold(caller, holder)
  redis.call('ZADD', KEYS[1], now + caller.lease, holder)
  last_for(KEYS[1], caller.lease)
end

if ARGV[4] == '1' then
  local held = {}
  for _, holder in ipairs(redis.call('ZRANGE', KEYS[1], ended, -1)) do
    local fence, token = string.match(holder, '^(%d+):(.*)$')
    if token then held[token] = fence end
  end
  for _, caller in ipairs(callers) do
    local fence = held[caller.token]
    if fence then
      hold(caller, fence .. ':' .. caller.token)
      caller.fence = tonumber(fence)
    end
  end
end

local function leave_line(name)
  redis.call('ZREM', KEYS[2], name)
  redis.call('HDEL', KEYS[3], name, 'n:' .. name, 'turn:' .. name)
end

-- Callers of others that may have come before a time, as far as that matters: `free` are enough.
local taken = redis.call('ZCARD', KEYS[1]) - ended
local free, others, place, seen, open_in = limit - taken, 0, 0, 0, nil
local function count_others(came)
  while others < free do
    local name, score = unpack(redis.call('ZRANGE', KEYS[2], place, place, 'WITHSCORES'))
    if not name or tonumber(score) >= came then return end
    if seen >= MOST_SEEN then
      others, open_in = free, 0  -- those who stand behind these may ask again at once
      return
    end
    seen = seen + 1
    local fields = redis.call('HMGET', KEYS[3], name, 'turn:' .. name, 'n:' .. name)
    local turn, count = tonumber(fields[2] or nil), tonumber(fields[3] or nil)
    if name ~= ticket and now >= (tonumber(fields[1] or 0) or 0) then
      leave_line(name)  -- it has not been heard of for too long
      seen = seen + 4
    elseif name == ticket or (count and turn and now - turn > PASSED_OVER_MS) then
      place = place + 1
    else
      if count then
        if not turn or turn > now then
          turn = now
          redis.call('HSET', KEYS[3], 'turn:' .. name, now)
        end
        local left = turn + PASSED_OVER_MS + 1 - now
        open_in = open_in and math.min(open_in, left) or left
      end
      others = others + math.max(1, count or 1)
      place = place + 1
    end
  end
end

local granted, first = 0, nil
for _, caller in ipairs(callers) do
  if not caller.fence and not first then
    count_others(caller.came)
    if others < free then
      local latest = tonumber(redis.call('HGET', KEYS[4], 'fence') or 0) or 0
      local fence = string.format('%.0f', math.max(latest + 1, time[1] * 1000000 + time[2]))
      redis.call('HSET', KEYS[4], 'fence', fence)
      redis.call('PEXPIRE', KEYS[4], ARGV[5])
      hold(caller, fence .. ':' .. caller.token)
      caller.fence = tonumber(fence)
      free, granted = free - 1, granted + 1
    else
      first = caller
    end
  end
end

local waiting = tonumber(ARGV[6])
for _, caller in ipairs(callers) do
  if caller.fence then waiting = waiting - 1 end
end
local rank = 0
if ticket ~= '' and waiting > 0 then
  local patience = tonumber(ARGV[3])
  local came = first and first.came or when(ARGV[7])
  redis.call('ZADD', KEYS[2], string.format('%.3f', came), ticket)
  redis.call('HSET', KEYS[3], ticket, now + patience, 'n:' .. ticket, waiting)
  redis.call('HDEL', KEYS[3], 'turn:' .. ticket)
  last_for(KEYS[2], patience)
  last_for(KEYS[3], patience)
  local number = tonumber(redis.call('HGET', KEYS[4], 'number') or 0) or 0
  if number < now then
    redis.call('HSET', KEYS[4], 'number', now)
    redis.call('PEXPIRE', KEYS[4], ARGV[5])
  end
  rank = redis.call('ZRANK', KEYS[2], ticket)
elseif ticket ~= '' then
  leave_line(ticket)
end
if granted > 0 and free > 0 and redis.call('ZCARD', KEYS[2]) > 0 then
  redis.pcall('PUBLISH', KEYS[1], 'free')  -- the next in line may be of another process
end

-- When this lease ends, enough have ended.
local at = rank + taken + granted - limit
local ends = at >= 0 and redis.call('ZRANGE', KEYS[1], ended + at, ended + at, 'WITHSCORES')[2]
local wait = ends and math.max(ends - now, 0) or -1
if open_in and (wait < 0 or open_in < wait) then wait = open_in end
local answer = {now, math.ceil(wait)}
for _, caller in ipairs(callers) do answer[#answer + 1] = caller.fence or 0 end
return answer

-- tend_queues: look after queues on behalf of all their workers.
--
-- One process at a time tends a queue: it holds a lease in the queue's state. Idle workers ask for
-- nothing; they sleep until they are woken. The tender wakes one where jobs can be claimed without
-- a token for them: jobs that are due, lanes whose time has come, jobs of programs that
-- write to the lists themselves, and jobs whose token was lost. It also learns of silent workers, and
-- notes in the state whether a key is of another type: all workers learn that with their signs of life.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: one key of another type must not keep the other queues from being looked after
--
-- KEYS[1]  HASH  the first queue's state; the others are named after what follows
-- ARGV[1]  str   the process that asks
-- ARGV[2]  int   ms for which it tends a queue unless it asks again
-- ARGV[3]  int   ms of silence after which a worker is dead
-- ARGV[4]  str   '1' to look for silent workers and to renew the lease in any case
-- ARGV[5..]  str  for each queue the beginning of the names of its own keys, and its plain list
--
-- Returns  list  for each queue three numbers. If the process tends it: a sum of 1 if jobs can be
--                claimed, 2 if a worker was woken for them, 4 if workers are silent or dead, 8 if a
--                key is of another type, 16 if the plain list has jobs, 32 if it has no jobs at all;
--                ms until more jobs can be claimed, 0 if that is not known; and ms until a worker may
--                be silent, -1 if that was not asked. Else -1, ms until the lease of another ends, and -1

-- Servers before 7 let a script go on at maxmemory once it has written.
redis.pcall('HDEL', KEYS[1], '')
-- Include: time
-- Include: lanes
-- Include: tending
local lease_ms, silence_ms, answer = tonumber(ARGV[2]), tonumber(ARGV[3]), {}

local function look(own, waiting, facts)
  local ring, delayed, parked = own .. 'ring', own .. 'delayed', own .. 'parked'
  local high, normal, low = waiting .. ':high', waiting .. ':normal', waiting .. ':low'
  -- Of most queues nothing is there, which one command tells.
  if redis.call('EXISTS', waiting, ring, delayed, parked, high, normal, low) == 0 then
    return 32, 0, false
  end
  local can_claim, is_foreign, woken, wait = false, false, false, 0
  local is_paused, paused_lanes = facts[3], facts[4] or ''
  local function waits_in(key, lane)
    local length = redis.pcall('LLEN', key)
    if type(length) == 'table' then is_foreign = true return false end
    if length > 0 and not is_paused and not string.find(paused_lanes, '<' .. lane .. '>', 1, true) then
      can_claim = true
    end
    return length > 0
  end
  local function happens(key)
    local found = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
    if found.err then is_foreign = true return end
    local at = tonumber(found[2] or AT_LIMIT)
    if at <= now then
      can_claim = true
    elseif at < AT_LIMIT and (wait == 0 or at - now < wait) then
      wait = at - now
    end
  end
  local in_plain = waits_in(waiting, '')
  waits_in(high, 'high')
  waits_in(normal, 'normal')
  waits_in(low, 'low')
  happens(delayed)
  if facts[5] and not is_paused then
    waits_in(ring, ':')
    happens(parked)
  end
  if can_claim then woken = wake(ring, 1) end
  return (can_claim and 1 or 0) + (woken and 2 or 0) + (is_foreign and 8 or 0) + (in_plain and 16 or 0),
    math.ceil(wait), is_foreign
end

-- ms until a worker has been silent for too long; 0 if one has, gives signs from before the clock was
-- set back, or was given up and still has claims.
local function until_silent(own)
  if redis.call('EXISTS', own .. 'dead_workers') == 1 then return 0 end
  local first = redis.pcall('ZRANGE', own .. 'workers', 0, 0, 'WITHSCORES')
  local oldest = tonumber(first[2])
  if not oldest then return silence_ms end
  local last = redis.call('ZRANGE', own .. 'workers', -1, -1, 'WITHSCORES')
  if tonumber(last[2]) >= now + silence_ms then return 0 end
  return math.max(0, math.ceil(oldest + silence_ms - now))
end

for place = 5, #ARGV, 2 do
  local own, waiting = ARGV[place], ARGV[place + 1]
  local state, flags, wait, silent_in, is_foreign = own .. 'state', 8, 0, -1, false
  local facts = redis.pcall('HMGET', state, 'tender', 'tended_until', 'paused', 'paused_lanes', 'lanes',
    'foreign')
  if not facts.err then
    local ends = tonumber(facts[2] or 0) or 0
    local is_held = is_tended(ends, now)
    if is_held and facts[1] ~= ARGV[1] then
      flags, wait = -1, ends - now
    else
      if not is_held or ARGV[4] == '1' or ends - now < lease_ms / 2 then
        redis.call('HSET', state, 'tender', ARGV[1], 'tended_until', now + lease_ms)
      end
      flags, wait, is_foreign = look(own, waiting, facts)
      if is_foreign and not facts[6] then redis.call('HSET', state, 'foreign', 1) end
      if facts[6] and not is_foreign then redis.call('HDEL', state, 'foreign') end
      if ARGV[4] == '1' then
        silent_in = until_silent(own)
        if silent_in == 0 then flags = flags + 4 end
      end
    end
  end
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = flags, wait, silent_in
end
return answer

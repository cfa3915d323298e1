-- claim_jobs: acknowledge finished jobs, move due ones to their lanes, and take jobs in hand.
--
-- A job in hand stands in the worker's claims until it is acknowledged, or until its worker is
-- dead. A worker that was given up as dead gets and acknowledges nothing any more.
--
-- A lane that is not a list, or has no set of running jobs, is put aside for a while, as are jobs
-- that are due in one: the others go on.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every job passes here; what it reads first, or writes, is looked at
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of priorities and fair lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  ZSET  ids of jobs not yet due
-- KEYS[7]  HASH  jobs not yet due
-- KEYS[8]  HASH  the queue's state
-- KEYS[9]  HASH  counters
-- KEYS[10] HASH  weights of fair lanes
-- KEYS[11] SET   jobs that were cancelled while they waited
-- KEYS[12] HASH  jobs that workers may have died of, and which worker reads or tries which
-- KEYS[13] ZSET  dead workers of the queue whose claims are to be returned
-- ARGV[1]  str   worker
-- ARGV[2]  int   number of the first claim
-- ARGV[3]  int   most jobs to take
-- ARGV[4]  str   beginning of the names of records
-- ARGV[5]  str   beginning of the names of the indexes by state
-- ARGV[6]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[7]  str   beginning of the names of claims by worker
-- ARGV[8]  int   bytes of jobs to take at the most, but for the first job
-- ARGV[9..]  str  claims that are done
--
-- Returns  list  the server's ms; ms at which the next job is due, or 0; how many claims the worker
--                has; the sum of 1 if lanes are in use, 2 if jobs on the lists were cancelled, 4 if
--                there may be suspects, 8 if more were left for want of bytes, 16 if no process tends the
--                queue; then a lane and a list of jobs taken from it, again and again; their claims are
--                numbered in this order: '17' in the plain list, '17:high' in a lane
--          int   -1  the worker was given up as dead; nothing was done

-- Servers before 7 let a script go on at maxmemory once it has written.
local touched, seen = redis.pcall('HDEL', KEYS[2], ''), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
-- Include: types
if type(touched) == 'table' then return fault_in('HASH', KEYS[2]) end
if type(seen) == 'table' then return fault_in('ZSET', KEYS[1]) end
if not seen then
  if #ARGV > 8 then redis.pcall('HINCRBY', KEYS[9], 'stale', #ARGV - 8) end
  return -1
end
-- Include: time
-- Include: lanes
local waiting, ring, parked = KEYS[3], KEYS[4], KEYS[5]
local PUT_OFF_MS, MOST_MOVED_BYTES, FIRST_STEP = 10000, 1048576, 4
local facts = redis.pcall('HMGET', KEYS[8], 'side', 'paused', 'bytes', 'levels', 'limit',
  'lane_limit', 'lanes', 'paused_lanes', 'tended_until')
if facts.err then return fault_in('HASH', KEYS[8]) end
if (facts[4] and not string.match(facts[4], '^%d+,%d+,%d+$')) or not tonumber(facts[5] or 0)
  or not tonumber(facts[6] or 0) then
  return redis.error_reply('ERR ' .. KEYS[8] .. ': levels, limit or lane_limit cannot be read')
end
local first_due = redis.pcall('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
if first_due.err then return fault_in('ZSET', KEYS[6]) end
local next_due = tonumber(first_due[2])
local is_due = next_due and next_due <= now
local plain = redis.pcall('LLEN', waiting)  -- how many jobs are in the plain list
local fault = type(plain) == 'table' and fault_in('LIST', waiting)
  or (facts[7] or is_due) and (fault_in('LIST', ring) or fault_in('ZSET', parked))
  or facts[7] and fault_in('HASH', KEYS[10])
  or is_due and fault_in('HASH', KEYS[7])
if fault then return fault end
local side, lane_limit = facts[1] or 'right', tonumber(facts[6] or 0)

local move_due
if is_due then
-- Include: records
  fault = fault_in_indexes(ARGV[5])
  if fault then return fault end
  function move_due()
    local moves, is_list, moved = {}, {}, 0
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, 200)) do
      local body = redis.call('HGET', KEYS[7], id)
      if body then
        moved = moved + #body
        local where, lane, item = string.match(body, '^(.)([^\n]*)\n(.*)$')
        if not where then where, lane, item = 'b', '', body end
        if is_list[lane] == nil then is_list[lane] = not fault_in('LIST', list_of(waiting, lane)) end
        if is_list[lane] then
          moves[#moves + 1] = {id, where == 'f', lane, item}
        else
          redis.call('ZADD', KEYS[6], now + PUT_OFF_MS, id)
        end
      else
        redis.call('ZREM', KEYS[6], id)
      end
      if moved > MOST_MOVED_BYTES then break end
    end
    for _, move in ipairs(moves) do
      local _, front, lane, item = unpack(move)
      if not front then put(waiting, ring, parked, KEYS[8], side, lane, item, false) end
    end
    for place = #moves, 1, -1 do  -- so that the first to be due is in front of the others
      local id, front, lane, item = unpack(moves[place])
      if front then put(waiting, ring, parked, KEYS[8], side, lane, item, true) end
      redis.call('ZREM', KEYS[6], id)
      redis.call('HDEL', KEYS[7], id)
      local name = string.match(id, '^[^ ]+') or id
      turn(ARGV[4] .. name, ARGV[5], name, 'queued', now)
    end
    next_due = tonumber(redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2])
    plain = redis.call('LLEN', waiting)
  end
end
local done = 0
if #ARGV > 8 then
  done = redis.call('HDEL', KEYS[2], unpack(ARGV, 9))
  if done > 0 then redis.pcall('HINCRBY', KEYS[9], 'done', done) end
  if facts[7] then
    for place = 9, #ARGV do
      free(ARGV[6], ring, parked, waiting, ARGV[1], ARGV[place])
    end
  end
end

if is_due then move_due() end

-- What is seldom there is looked for at once: cancelled jobs, suspects, and lists of priorities.
local high, normal, low = list_of(waiting, 'high'), list_of(waiting, 'normal'), list_of(waiting, 'low')
local has_cancelled, is_careful, has_levels = false, false, false
if redis.call('EXISTS', KEYS[11], KEYS[12], high, normal, low) > 0 then
  has_cancelled = redis.call('EXISTS', KEYS[11]) == 1
  is_careful = redis.call('EXISTS', KEYS[12]) == 1 and not fault_in('HASH', KEYS[12])
  has_levels = redis.call('EXISTS', high, normal, low) > 0
end
local answer, number, left = {now, next_due or 0, 0,
  (facts[7] and 1 or 0) + (has_cancelled and 2 or 0) + (is_careful and 4 or 0)},
  tonumber(ARGV[2]), tonumber(ARGV[3])

-- Whether there are jobs to take; fair lanes that are parked have none at present.
local function has_jobs()
  return plain > 0 or has_levels and redis.call('EXISTS', high, normal, low) > 0
    or facts[7] and redis.call('EXISTS', ring) == 1
end

local at_limit = false
if facts[2] then left = 0 end
-- What all workers have in hand is counted only if there is something to take, and up to the limit.
-- Of many workers those are asked that have taken jobs; some of those that have none any more leave
-- with each call. Workers of earlier versions are not among them, but of few workers all are asked.
local MANY_WORKERS, MOST_LEAVING = 1000, 500
if facts[5] and left > 0 and (has_jobs() or redis.call('EXISTS', parked) == 1) then
  local is_many = redis.call('ZCARD', KEYS[1]) > MANY_WORKERS
  local asked, place, gone = is_many and string.sub(ring, 1, -5) .. 'busy' or KEYS[1], 0, 0
  local places = tonumber(facts[5])
  while places > 0 do
    local some = redis.pcall('ZRANGE', asked, place, place + 99)
    if not some[1] then break end
    for _, worker in ipairs(some) do
      local held = redis.pcall('HLEN', ARGV[7] .. worker)
      if type(held) ~= 'number' then held = 0 end
      if is_many and (held == 0 or not redis.call('ZSCORE', KEYS[1], worker)) then
        redis.call('ZREM', asked, worker)
        gone = gone + 1
      else
        places, place = places - held, place + 1
      end
      if places <= 0 then break end
    end
    if gone >= MOST_LEAVING then places = 0 end
  end
  left = math.max(0, math.min(left, places))
  at_limit = left < tonumber(ARGV[3])
end
local allowed = left

local pop, unpop = 'LPOP', 'LPUSH'
if side == 'left' then pop, unpop = 'RPOP', 'RPUSH' end
local first_number, room, freed, is_cut = number, tonumber(ARGV[8]), 0, false

-- How many of the next jobs may be taken: those in front of the first suspect, or that one alone if
-- the worker has taken nothing else in this call and has no other on trial. It looks no further than
-- there is room.
local function harmless(lane, most)
-- Include: suspects
  local list, seen, bytes, largest, step = list_of(waiting, lane), 0, 0, 1, math.min(most, FIRST_STEP)
  while step > 0 do
    local from, to = seen, seen + step - 1
    if side == 'left' then from, to = -to - 1, -from - 1 end
    local items = redis.pcall('LRANGE', list, from, to)
    for place = 1, #items do
      local item = items[side == 'left' and #items + 1 - place or place]
      bytes, largest = bytes + #item, math.max(largest, #item)
      if bytes > room and number + seen > first_number then return seen + 1 end  -- it does not fit
      local name = suspect_name(item)
      if redis.call('HEXISTS', KEYS[12], name) == 1 then
        if seen > 0 then return seen end
        local claim = redis.call('HGET', KEYS[12], '?' .. ARGV[1])
        if #answer > 4 or claim and redis.call('HEXISTS', KEYS[2], claim) == 1 then return 0 end
        return 1, name
      end
      seen = seen + 1
    end
    if #items < step then break end
    step = math.min(most - seen, math.max(1, math.floor((room - bytes) / largest)))
  end
  return most
end

-- Pops a few jobs, and the others by their size; what does not fit after all goes back to its place.
local function take(lane, most)
  if most <= 0 or is_cut or (facts[8] and string.find(facts[8], '<' .. lane .. '>', 1, true)) then
    return 0
  end
  if lane == '' then
    if plain == 0 then return 0 end
  elseif PRIORITIES[lane] and not has_levels then
    return 0
  end
  local suspect
  if is_careful then
    if left <= 0 then return 0 end
    most, suspect = harmless(lane, math.min(most, left))
    if most == 0 then return 0 end
  end
  local list, suffix = list_of(waiting, lane), lane == '' and '' or ':' .. lane
  local claims, count, bytes, largest = {}, 0, 0, 1
  local step = math.min(most, FIRST_STEP)
  while step > 0 do
    local some = redis.pcall(pop, list, step)
    if not some or some.err then break end
    local got = #some
    for place = 1, got do
      local item = some[place]
      local size = #item
      if bytes + size > room and number > first_number then
        for last = got, place, -1 do
          redis.call(unpop, list, some[last])
          some[last] = nil
        end
        is_cut = true
        break
      end
      count, bytes = count + 1, bytes + size
      claims[2 * count - 1], claims[2 * count] = number .. suffix, item
      number = number + 1
      if size > largest then largest = size end
    end
    if some[1] then answer[#answer + 1], answer[#answer + 2] = lane, some end
    if is_cut or got < step then break end
    step = math.min(most - count, math.max(1, math.floor((room - bytes) / largest)))
  end
  room = room - bytes
  if lane == '' then plain = plain - count end
  if facts[3] then freed = freed + bytes end
  if count > 0 then redis.call('HSET', KEYS[2], unpack(claims)) end
  left = is_cut and 0 or left - count
  if suspect and count > 0 then
    redis.call('HSET', KEYS[12], '?' .. ARGV[1], claims[1])
    redis.call('HDEL', KEYS[12], suspect)
    left = 0
  end
  return count
end

-- Fair lanes take turns; one keeps its turn until it has had as many jobs as it weighs.
local function take_fairly(most)
  local taken, rounds = 0, 0
  local credit = tonumber(redis.call('HGET', KEYS[8], 'credit') or 0) or 0
  local begun_with = credit
  while taken < most and rounds < 1000 and not is_cut do
    rounds = rounds + 1
    local lane = redis.call('LINDEX', ring, 0)
    if not lane then credit = 0 break end
    if credit <= 0 then credit = tonumber(redis.call('HGET', KEYS[10], lane) or 1) or 1 end
    local wanted, places = math.min(credit, most - taken), false
    local is_sound = not fault_in('LIST', list_of(waiting, lane))
    if lane_limit > 0 then
      local running = redis.pcall('SCARD', ARGV[6] .. lane)
      is_sound = is_sound and type(running) == 'number'
      places = is_sound and lane_limit - running or 0
      wanted = math.min(wanted, places)
    end
    if not is_sound then wanted = 0 end
    local first = number
    local got = take(lane, wanted)
    for one = first, first + got - 1 do
      if lane_limit > 0 then
        redis.call('SADD', ARGV[6] .. lane, ARGV[1] .. ' ' .. one .. ':' .. lane)
      end
    end
    taken, credit = taken + got, credit - got
    if not is_sound then
      redis.call('LPOP', ring)
      redis.call('ZADD', parked, now + PUT_OFF_MS, lane)
      credit = 0
    elseif redis.call('EXISTS', list_of(waiting, lane)) == 0 then
      redis.call('LPOP', ring)
      index_lane(ring, lane, false)
      credit = 0
    elseif places and places - got <= 0 then
      redis.call('LPOP', ring)
      redis.call('ZADD', parked, AT_LIMIT, lane)
      credit = 0
    elseif credit <= 0 then
      redis.call('LMOVE', ring, ring, 'LEFT', 'RIGHT')
    elseif got == 0 then
      break  -- a suspect is in front
    end
  end
  if credit ~= begun_with then redis.call('HSET', KEYS[8], 'credit', credit) end
  return taken
end

-- The plain list and all fair lanes together take turns, too.
local function take_normal(most)
  if most <= 0 then return end
  local before = left
  local function rest() return most - (before - left) end
  take('normal', most)
  if facts[7] and redis.call('EXISTS', ring) == 1 then
    local flips = redis.pcall('HINCRBY', KEYS[8], 'flips', 1)
    local plain_first = type(flips) == 'number' and flips % 2 == 0
    local half = math.ceil(rest() / 2)
    if plain_first then take('', half) else take_fairly(half) end
    if plain_first then take_fairly(rest()) else take('', rest()) end
    take_fairly(rest())
  end
  take('', rest())
end

if left > 0 then
  if facts[7] then
    for _, lane in ipairs(redis.call('ZRANGEBYSCORE', parked, '-inf', now, 'LIMIT', 0, 100)) do
      redis.call('ZREM', parked, lane)
      enlist(ring, parked, lane, redis.call('EXISTS', list_of(waiting, lane)) == 1)
    end
  end
  if facts[4] then
    local high, normal, low = string.match(facts[4], '^(%d+),(%d+),(%d+)$')
    local total = high + normal + low
    local turns = redis.call('HINCRBY', KEYS[8], 'turn', left)
    local before, wanted = turns - left, left
    local function share(low_edge, weight)
      local function upto(count)
        local rounds, rest = math.floor(count / total), count % total
        return rounds * weight + math.max(0, math.min(rest - low_edge, weight))
      end
      return upto(turns) - upto(before)
    end
    take('high', share(0, tonumber(high)))
    take_normal(share(tonumber(high), tonumber(normal)))
    take('low', math.min(left, wanted, share(high + normal, tonumber(low))))
  end
  take('high', left)
  take_normal(left)
  take('low', left)
end
if facts[3] and freed > 0 then
  local stored = redis.pcall('HINCRBY', KEYS[8], 'bytes', -freed)
  if type(stored) == 'table' or stored < 0 then redis.call('HSET', KEYS[8], 'bytes', 0) end
end
if has_cancelled then
-- Include: inhand
  redis.call('PERSIST', KEYS[11])  -- earlier versions give it a time to live
  if not is_careful and left > 0 and not facts[8] and redis.call('EXISTS', ring, parked) == 0
    and not may_have_claims({KEYS[1], KEYS[13]}, ARGV[7]) and not fault_in('SET', KEYS[11]) then
    redis.call('UNLINK', KEYS[11])  -- nothing waits or is in hand that could have been cancelled
  end
end
-- A claim that takes all it may wakes others for the rest; one that finds no more jobs takes the tokens.
local is_full = allowed > 0 and left == 0 and not at_limit
  or (is_careful or is_cut) and #answer > 4
if is_full or (facts[5] and done > 0 and ARGV[3] == '0') then
  if has_jobs() then wake(ring, is_full and 2 or 1) end
elseif left > 0 and not (is_careful or is_cut or facts[8])
  and not (facts[7] and redis.call('EXISTS', ring) == 1) then
  redis.pcall('LPOP', wakeup_of(ring), 2)
end
answer[3] = redis.call('HLEN', KEYS[2])
if facts[5] and #answer > 4 then redis.pcall('ZADD', string.sub(ring, 1, -5) .. 'busy', now, ARGV[1]) end
if is_cut then answer[4] = answer[4] + 8 end
-- Include: tending
if not is_tended(facts[9], now) then answer[4] = answer[4] + 16 end
return answer

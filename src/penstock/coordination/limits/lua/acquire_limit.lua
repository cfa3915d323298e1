-- acquire_limit: take permits, if every window of the limit has room for them.
--
-- Flags: allow-oom  work that drains a full server may be behind a limit
-- Unchecked: every call passes here; what it reads first, or writes, is looked at
--
-- KEYS[1]  ZSET    log of admitted calls, of the exact algorithm
-- KEYS[2]  STRING  the limit's state
-- KEYS[3]  ZSET    tickets of those who wait, each of the foremost callers of a process
-- KEYS[4]  HASH    what they want
-- ARGV[1]  str     'exact', 'compact' or 'gcra'
-- ARGV[2]  int     permits wanted; 0 to look only
-- ARGV[3]  int     fewest permits that do
-- ARGV[4]  num     largest part of what is left, 1 for all
-- ARGV[5]  int     ms for which they may be used; 0 for at once
-- ARGV[6]  str     ticket with which to wait if there are none, '' for a caller that does not
-- ARGV[7]  int     priority
-- ARGV[8]  str     of callers that wait, as MessagePack: number of the group, ms since its first
--                  caller came, ms since the last one behind it came, callers and permits wanted in
--                  all, ms until they ask again at the latest, ms after which the ticket of a silent
--                  process is void, the permits of each caller of the group, the depths of the line
--                  whose waits are asked for (permits up to there, permits of the last one), and by
--                  how many ms permits may be granted before they are there, of gcra
-- ARGV[9]  str     id of permits taken before that are given back, '' for none
-- ARGV[10] int     how many those were
-- ARGV[11] int     how many of them were used
-- ARGV[12] int     the server's ms that was logged for them
-- ARGV[13..] int   buckets of a window, then for each window its limit, its ms and its burst
--
-- Returns  list  permits granted, of a group to as many of its callers as they suffice for; ms to
--                wait (of a group: for the next of it), -1 if there will never be enough; the
--                server's ms that was logged; id, those of a group follow it; why not: 0 '', 1 the
--                limit, 2 others wait, 3 a penalty; how many tickets are before; then for each
--                window what is left and ms until it is all free; of a group then ms until it
--                should ask again, ms to wait for each depth, and, where permits may be granted
--                ahead, ms until each caller that was granted may use its own

-- Include: time
local algorithm, first = ARGV[1], 13
-- Include: limit_stored
-- Include: limit_fast_path
local has_log, has_line = algorithm == 'exact' or state[1] == 'exact', state[7] ~= 0 or ARGV[6] ~= ''
if has_log or has_line then
-- Include: types
  local fault = has_log and fault_in('ZSET', KEYS[1])
    or has_line and (fault_in('ZSET', KEYS[3]) or fault_in('HASH', KEYS[4]))
  if fault then return fault end
end
-- Include: limit_state
local wanted, fewest, hold = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local ticket, priority = ARGV[6], tonumber(ARGV[7])
local group = ticket ~= '' and cmsgpack.unpack(ARGV[8])
local costs = group and group[8]
if ARGV[9] ~= '' then
  change(ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), now)
end

local left, most = math.huge, math.huge  -- what is left, and the most that can ever be had at once
for place = 1, #windows do
  local window = windows[place]
  local room, bound = algo.room(window) - window.extra, window.limit
  if room < left then left = room end
  if algorithm == 'gcra' then bound = window.burst end
  if bound < most then most = bound end
end
local before, ahead, late, line = 0, 0, 0, {}
if has_line then
-- Include: limit_waiters
  before, ahead, late = line.before(left)
end
local room = left - before  -- room for us: what is left behind those before
-- A caller that asks for so long assumes a longer period, from before an edit.
local at = now + hold
if hold > 0 and algo.reaches and not algo.reaches(at) then room = 0 end
-- The first in line may take permits some ms ahead, each to be used when it is there.
local early, ready = group and ahead == 0 and algo.room_within and group[10] or 0, {}
if early > 0 then
  room = math.huge
  for place = 1, #windows do room = math.min(room, algo.room_within(windows[place], early)) end
end
local grant, served, wait, reason = 0, 0, 0, 0
if state[5] > now then
  wait, reason = state[5] - now, 3
elseif wanted > 0 and room >= fewest then
  if group then
    while served < #costs and grant + costs[served + 1] <= room and costs[served + 1] <= most do
      served = served + 1
      grant = grant + costs[served]
    end
  else
    grant = math.min(wanted, room, math.max(fewest, math.floor(room * ARGV[4])))
  end
elseif wanted > 0 then
  reason = left >= fewest and 2 or 1
end

local number = state[3] + 1
if grant > 0 and algorithm ~= 'exact' and early == 0 then
  -- They are counted together, and known apart by their numbers.
  state[3] = state[3] + math.max(served, 1)
  algo.take(grant, at, 0)
  state[4] = math.max(state[4], at)
elseif grant > 0 then
  for place = 1, math.max(served, 1) do
    state[3] = state[3] + 1
    local cost = group and costs[place] or grant
    if early > 0 then
      ready[place] = ready[place - 1] or 0
      for _, window in ipairs(windows) do
        local need = cost - algo.room(window)
        if need > 0 then ready[place] = math.max(ready[place], math.ceil(algo.wait(window, need))) end
      end
    end
    algo.take(cost, at, early)
  end
  state[4] = math.max(state[4], at + (ready[#ready] or 0))
end

-- The ms until so many permits can have been given out, those before us taking theirs at once.
local function wait_for(count)
  local longest_wait = math.max(1, state[5] - now)
  for _, window in ipairs(windows) do
    local need, rounds, period = count - algo.room(window) + window.extra, 0, algo.period(window)
    if need > 0 then
      local counted = period and math.max(window.limit, window.used + window.extra) or need
      if need > counted then
        -- Those before use up whole windows.
        rounds = math.ceil((need - counted) / window.limit)
        need = need - rounds * window.limit
      end
      local free = algo.wait(window, need)
      if window.extra > 0 and window.extra_until - now < free then
        -- What the provider counted leaves earlier: less of our own has to.
        local rest = need - window.extra
        free = math.max(window.extra_until - now, rest > 0 and algo.wait(window, rest) or 0)
      end
      if free == math.huge then free = period end
      longest_wait = math.max(longest_wait, free + (rounds > 0 and rounds * period or 0))
    end
  end
  return math.min(longest_wait, 1e12)
end

local following = fewest
if group then following = costs[served + 1] end
if wanted > 0 and following and (group or grant == 0) then
  if following > most then
    wait = grant == 0 and -1 or 1
  else
    wait = wait_for(before + following)
  end
end
-- Next in line, we are there when the one before us does not come.
local pause = ahead == 1 and math.min(wait, late) or wait
if group and following and wait >= 0 then
  line.stand(served, grant, pause)
elseif group then
  line.leave()
end
if not (is_new and wanted == 0) then save() end

local id = string.format('%.0f', state[8] + (grant > 0 and number or state[3]))
local reply = {grant, math.ceil(wait), at, id, reason, ahead}
for place = 1, #windows do
  local window = windows[place]
  local reset = algo.reset(window)
  if window.extra > 0 then reset = math.max(reset, window.extra_until - now) end
  reply[5 + 2 * place], reply[6 + 2 * place] = algo.room(window) - window.extra, math.ceil(reset)
end
if group then reply[#reply + 1] = math.ceil(pause) end
for _, depth in ipairs(group and group[9] or {}) do
  reply[#reply + 1] = depth[2] > most and -1 or math.ceil(wait_for(before + depth[1] - grant))
end
for place = 1, #ready do reply[#reply + 1] = ready[place] end
return reply

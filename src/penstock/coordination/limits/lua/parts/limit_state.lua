-- The state of one limit, for the scripts that follow: its `windows`, brought up to `now`. A script
-- says in ARGV, from `first` on, how the limit is set: buckets of the compact algorithm, then limit,
-- period in ms and burst of each window, the shortest period first.

-- Whether everything in the state can be what it should be; raises an error if it is of another kind.
local function is_state()
  local squares = 0
  for place = 3, HEAD do squares = squares + state[place] * state[place] end
  for place = HEAD, #state - 1, FIELDS do
    local ms, used, edge, oldest, extra, till, ring, since = unpack(state, place + 1, place + FIELDS)
    local buckets = #ring / 4 - 1 - AHEAD
    if state[1] == 'compact' and (buckets < 1 or buckets % 1 > 0) then return false end
    squares = squares + ms * ms + used * used + edge * edge + oldest * oldest + extra * extra
      + till * till + since * since
  end
  return squares < 2 ^ 105  -- each can be counted up; nor is that true of what is not a number
end

if not is_new then
  local is_checked, is_right = pcall(is_state)
  if not is_checked or not is_right then
    return redis.error_reply('ERR ' .. KEYS[2] .. UNREADABLE)
  end
end

-- A time by the clock that was set back: what was still to come is as far away as it was at last.
local function retimed(at)
  return at > now and now + math.max(0, at - last) or at
end

if set_back then
  state[4], state[5], state[6] = retimed(state[4]), retimed(state[5]), 0
end

local windows, longest, buckets = {}, 0, tonumber(ARGV[first])
for place = first + 1, #ARGV, 3 do
  local ms = tonumber(ARGV[place + 1])
  local at = HEAD + 1 + #windows * FIELDS
  if state[at] ~= ms then
    at = nil
    for other = HEAD + 1, #state, FIELDS do
      if state[other] == ms then at = other end
    end
  end
  local extra, extra_until = at and state[at + 4] or 0, at and state[at + 5] or 0
  if set_back then extra_until = retimed(extra_until) end
  windows[#windows + 1] = {
    ms = ms, limit = tonumber(ARGV[place]), burst = tonumber(ARGV[place + 2]),
    is_known = at ~= nil, used = at and state[at + 1] or 0, edge = at and state[at + 2] or 0,
    oldest = at and state[at + 3] or 0, ring = at and state[at + 6] or '',
    since = at and state[at + 7] or 0,
    extra = extra_until > now and extra or 0, extra_until = extra_until
  }
  if ms > longest then longest = ms end
end

-- What an algorithm has, for each window: begin (nothing is counted yet), advance (time passes),
-- renew (the clock was set back, or the period is new), adopt (another algorithm has counted so
-- many), room, wait, period (after which what is taken can be taken again), reset, reported (by the
-- provider), of gcra also room_within (some ms); and for all of them: take, change.
local algo = {}
if algorithm == 'exact' then
-- Include: limit_exact
elseif algorithm == 'compact' then
-- Include: limit_compact
else
-- Include: limit_gcra
end

if state[1] ~= algorithm then
  redis.call('UNLINK', KEYS[1])
  state[6] = 0
  if state[4] < now then state[4] = now end
  -- GCRA does not know how many there were: as many as there may have been. Of a period that was
  -- not counted, all that is known of others may be in it.
  local by_gcra, most = state[1] == 'gcra', 0
  for place = HEAD + 1, #state, FIELDS do
    if not by_gcra then most = math.max(most, state[place + 1]) end
  end
  for _, window in ipairs(windows) do
    if by_gcra then most = math.max(most, window.limit) end
  end
  for _, window in ipairs(windows) do
    algo.adopt(window, window.is_known and not by_gcra and window.used or most)
  end
  state[1] = algorithm
else
  local bring_up = is_new and algo.begin or algo.advance
  for place = 1, #windows do
    local window = windows[place]
    if is_new or window.is_known and not set_back then bring_up(window) else algo.renew(window) end
  end
end

-- Lets permits weigh `new` instead of `old`, as of `at` if that is earlier; how many came back.
local function change(id, old, new, logged_at, at)
  local number = tonumber(id) - state[8]
  if number < 1 or number > state[3] then return 0 end  -- of a state that was forgotten
  return algo.change(number, old, new, logged_at, at)
end

local function save()
  local at, ttl = HEAD, math.max(2 * longest, state[4] + longest - now, state[5] - now)
  for place = 1, #windows do
    local window = windows[place]
    state[at + 1], state[at + 2], state[at + 3] = window.ms, window.used, window.edge
    state[at + 4], state[at + 5], state[at + 6] = window.oldest, window.extra, window.extra_until
    state[at + 7], state[at + 8] = window.ring, window.since
    at = at + FIELDS
    if window.extra_until - now > ttl then ttl = window.extra_until - now end
  end
  for place = #state, at + 1, -1 do state[place] = nil end
  redis.call('SET', KEYS[2], cmsgpack.pack(state), 'PX', math.ceil(ttl) + 1000)
end

-- The state of one limit, for the scripts that follow: `state` and its `windows`, brought up to
-- `now`. A script says in ARGV, from `first` on, how the limit is set: buckets of the compact
-- algorithm, then limit, period in ms and burst of each window.
--
-- What a window has: ms, limit, used (of its own algorithm), extra and extra_until (what the
-- provider has counted besides). Stored as MessagePack, in this order.

local FROZEN_MS = 60000  -- a clock set back by less stands still; by more, times are set anew

local stored = redis.call('GET', KEYS[2])
local state = stored and cmsgpack.unpack(stored)
local is_new = not state
if is_new then state = {a = algorithm, c = now, s = 0, n = 0, u = 0, x = 0, l = 0, w = {}} end
local set_back = state.c - now > FROZEN_MS
if now < state.c and not set_back then now = state.c end
state.c = now

local windows, longest, ring_size = {}, 0, 0
local buckets = tonumber(ARGV[first])
for place = first + 1, #ARGV, 3 do
  local ms = tonumber(ARGV[place + 1])
  local window = {ms = ms, limit = tonumber(ARGV[place]), burst = tonumber(ARGV[place + 2]),
                  used = 0, extra = 0, extra_until = 0}
  for _, known in ipairs(state.w) do
    if known[1] == ms then
      window.used, window.edge, window.ring = known[2], known[3], known[6]
      window.extra, window.extra_until = known[4], known[5]
      window.is_known = true
    end
  end
  if window.extra_until <= now then window.extra = 0 end
  windows[#windows + 1] = window
  if ms > longest then longest = ms end
end

local algo = {}
if algorithm == 'exact' then
-- Include: exactlimit
elseif algorithm == 'compact' then
-- Include: compactlimit
else
-- Include: gcralimit
end

if state.a ~= algorithm then
  -- What another algorithm has counted is kept as a sum, for a whole period from now on.
  for _, window in ipairs(windows) do
    if window.is_known then
      local old = state.a == 'gcra' and window.limit or window.used
      window.extra, window.extra_until = math.max(window.extra, old), now + window.ms
    end
    window.used, window.edge, window.ring, window.is_known = 0, nil, nil, false
  end
  redis.call('DEL', KEYS[1])
  state.a = algorithm
end
for _, window in ipairs(windows) do
  if not window.is_known or set_back then algo.begin(window) else algo.advance(window) end
end

local function left_in(window)
  return algo.room(window) - window.extra
end

local function save(hold)
  local kept = {}
  for place, window in ipairs(windows) do
    kept[place] = {window.ms, window.used, window.edge, window.extra, window.extra_until,
                   window.ring}
  end
  state.w = kept
  local ttl = 2 * longest + hold + 1000
  if state.u - now > ttl then ttl = state.u - now end
  redis.call('SET', KEYS[2], cmsgpack.pack(state), 'PX', math.ceil(ttl))
end

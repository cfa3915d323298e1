-- The state of one limit, for the scripts that follow: its `windows`, brought up to `now`. A script
-- says in ARGV, from `first` on, how the limit is set: buckets of the compact algorithm, then limit,
-- period in ms and burst of each window.
--
-- Stored is a list, as MessagePack: algorithm, the latest `now`, the latest id, the latest time that
-- was logged, the end of the penalty, when the log expires, whether callers wait; then for each
-- window its ms, what is used, edge and oldest (both of its own algorithm), what the provider has
-- counted besides and until when, and its buckets ('' for none).

local FROZEN_MS = 60000  -- a clock set back by less stands still; by more, times are set anew
local HEAD, FIELDS = 7, 7

local stored = redis.call('GET', KEYS[2])
local is_new = not stored
local state = stored and cmsgpack.unpack(stored) or {algorithm, now, 0, 0, 0, 0, 0}
local set_back = state[2] - now > FROZEN_MS
if now < state[2] and not set_back then now = state[2] end
state[2] = now

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
  windows[#windows + 1] = {
    ms = ms, limit = tonumber(ARGV[place]), burst = tonumber(ARGV[place + 2]),
    is_known = at ~= nil, used = at and state[at + 1] or 0, edge = at and state[at + 2] or 0,
    oldest = at and state[at + 3] or 0, ring = at and state[at + 6] or '', left = 0,
    extra = extra_until > now and extra or 0, extra_until = extra_until
  }
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

if state[1] ~= algorithm then
  -- What another algorithm has counted is kept as a sum, for a whole period from now on.
  for _, window in ipairs(windows) do
    if window.is_known then
      local old = state[1] == 'gcra' and window.limit or window.used
      window.extra, window.extra_until = math.max(window.extra, old), now + window.ms
    end
    window.used, window.is_known = 0, false
  end
  redis.call('DEL', KEYS[1])
  state[1] = algorithm
end
for place = 1, #windows do
  local window = windows[place]
  if not window.is_known or set_back then algo.begin(window) else algo.advance(window) end
end

local function save(hold)
  local at = HEAD
  for place = 1, #windows do
    local window = windows[place]
    state[at + 1], state[at + 2], state[at + 3] = window.ms, window.used, window.edge
    state[at + 4], state[at + 5], state[at + 6] = window.oldest, window.extra, window.extra_until
    state[at + 7] = window.ring
    at = at + FIELDS
  end
  for place = #state, at + 1, -1 do state[place] = nil end
  local ttl = 2 * longest + hold + 1000
  if state[5] - now > ttl then ttl = state[5] - now end
  redis.call('SET', KEYS[2], cmsgpack.pack(state), 'PX', ttl)
end

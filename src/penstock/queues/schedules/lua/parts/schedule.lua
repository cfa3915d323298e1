-- Schedules: the next tick is in a ZSET (`inf` while it is paused), and beside it in the
-- queue's state the declaration (empty: removed by hand) and when a worker last declared it.

local function declared_in(name) return 'cron:' .. name end

local function seen_in(name) return 'cron_seen:' .. name end

-- A worker notes this often that it declares a schedule; after three times as long it counts as orphaned.
local SEEN_MS = 10000

local function is_seen(seen, now)
  return math.abs(now - (tonumber(seen or 0) or 0)) < 3 * SEEN_MS
end

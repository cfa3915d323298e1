-- penalise_limit: refuse all calls for a while.
--
-- Flags: allow-oom  a full server must not make us trouble others
--
-- KEYS[1]  ZSET    log of admitted calls, of the exact algorithm
-- KEYS[2]  STRING  the limit's state
-- ARGV[1]  str     'exact', 'compact' or 'gcra'
-- ARGV[2]  int     ms from now; a longer penalty that is there stays; 0 lifts it
-- ARGV[3..] int   buckets of a window, then for each window its limit, its ms and its burst
--
-- Returns  int  ms until it ends
--
-- Publishes on a channel named as the state: those who have permits in advance drop them.

-- Include: time
local algorithm, first = ARGV[1], 3
-- Include: limit_stored
-- Include: limit_state
local ms = tonumber(ARGV[2])
redis.call('ZREM', KEYS[1], '')  -- needs no memory: before version 7 the others may follow it
state[5] = ms > 0 and math.max(state[5], now + ms) or 0
save()
redis.pcall('PUBLISH', KEYS[2], 'penalty')  -- where that is not allowed, they learn it later
return math.max(0, state[5] - now)

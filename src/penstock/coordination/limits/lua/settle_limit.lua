-- settle_limit: let permits taken before weigh what was really used.
--
-- Flags: allow-oom  what was not used comes back also on a full server
--
-- KEYS[1]  ZSET    log of admitted calls, of the exact algorithm
-- KEYS[2]  STRING  the limit's state
-- ARGV[1]  str     'exact', 'compact' or 'gcra'
-- ARGV[2]  str     id of the permits
-- ARGV[3]  int     how many they were
-- ARGV[4]  int     how many were used
-- ARGV[5]  int     the server's ms that was logged for them
-- ARGV[6]  str     '1' to count them as of now, if that is earlier: they were taken in advance
-- ARGV[7..] int   buckets of a window, then for each window its limit, its ms and its burst
--
-- Returns  int  permits that came back; negative if more were used; 0 also if they have left the
--               longest window

-- Include: time
local algorithm, first = ARGV[1], 7
-- Include: limit_stored
-- Include: limit_state
if is_new then return 0 end
redis.call('ZREM', KEYS[1], '')  -- needs no memory: before version 7 the others may follow it
local changed = change(ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]),
  ARGV[6] == '1' and now or nil)
save()
return changed

-- reconcile_limit: count what a provider has counted and we have not.
--
-- KEYS[1]  ZSET    log of admitted calls, of the exact algorithm
-- KEYS[2]  STRING  the limit's state
-- ARGV[1]  str     'exact', 'compact' or 'gcra'
-- ARGV[2]  str     for each window what the provider has counted and ms until it forgets that, as
--                  a JSON list of pairs; -1 where it does not say
-- ARGV[3..] int   buckets of a window, then for each window its limit, its ms and its burst
--
-- Returns  list  for each window, what is counted besides our own

-- Include: time
local algorithm, first = ARGV[1], 3
-- Include: limit_stored
-- Include: limit_state
local counted, reply = cjson.decode(ARGV[2]), {}
for place, window in ipairs(windows) do
  local used, reset = counted[place][1], counted[place][2]
  if used >= 0 then algo.reported(window, used, reset >= 0 and reset or window.ms) end
  reply[place] = window.extra
end
save()
return reply

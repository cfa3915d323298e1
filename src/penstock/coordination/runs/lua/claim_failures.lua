-- claim_failures: give failures that are due to one caller, and to no other for a time.
--
-- Flags: allow-oom  what waits is tried again on a full server, too
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  int     most of them
-- ARGV[3]  int     ms after which they are due again, unless they are settled or fail by then
--
-- Returns  list  for each id, ms at which it is due again, what is known of it; -1 for no such run

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local earlier, ids = answered(ARGV[1])
if earlier then
  ids = cjson.decode(earlier)
else
  ids = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now, 'LIMIT', 0, ARGV[2])
  for _, id in ipairs(ids) do redis.call('ZADD', KEYS[5], now + ARGV[3], id) end
  if #ids > 0 then remember(ARGV[1], cjson.encode(ids)) end
end
local found = {}
for _, id in ipairs(ids) do
  local due = redis.call('ZSCORE', KEYS[5], id)
  if due then
    local place = #found
    found[place + 1], found[place + 2] = id, due
    found[place + 3] = redis.call('HGET', KEYS[6], id) or ''
  end
end
return found

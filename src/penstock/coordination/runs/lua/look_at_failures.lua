-- look_at_failures: show open failures of a run, in the order in which they are due.
--
-- KEYS[1]  ZSET  ids of what failed by the time of the next attempt
-- KEYS[2]  HASH  what is known of failures
-- ARGV[1]  int   most of them
-- ARGV[2]  int   1 for those that are due alone
-- ARGV[3]  str   score of the failure after which to begin; '' for the first
-- ARGV[4]  str   its id
--
-- Returns  list  for each id, ms at which it is due, what is known of it

-- Include: time
local start = 0
if ARGV[3] ~= '' then
  if redis.call('ZSCORE', KEYS[1], ARGV[4]) == ARGV[3] then
    start = redis.call('ZRANK', KEYS[1], ARGV[4]) + 1
  else
    -- It moved or was settled meanwhile: those of the same time may be shown twice.
    start = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[3])
  end
end
local rows = redis.call('ZRANGE', KEYS[1], start, start + ARGV[1] - 1, 'WITHSCORES')
local found = {}
for i = 1, #rows, 2 do
  local due = tonumber(rows[i + 1])
  if ARGV[2] == '1' and (due == nil or due > now) then break end
  local place = #found
  found[place + 1], found[place + 2] = rows[i], rows[i + 1]
  found[place + 3] = redis.call('HGET', KEYS[2], rows[i]) or ''
end
return found

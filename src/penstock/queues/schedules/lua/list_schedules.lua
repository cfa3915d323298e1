-- list_schedules: list schedules of a queue, a page at a time; one may come twice.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1]  str   where the last page ended, '0' to begin
-- ARGV[2]  int   approximate page size
--
-- Returns  list  where the next page begins, '0' if there is none; then for each schedule its name,
--                its next tick ('inf' if it is paused), its declaration, and 1 if a worker has
--                declared it recently, else 0

-- Include: time
-- Include: schedule
local cursor, found = unpack(redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
local answer = {cursor}
for place = 1, #found, 2 do
  local name = found[place]
  local facts = redis.call('HMGET', KEYS[2], declared_in(name), seen_in(name))
  answer[#answer + 1] = name
  answer[#answer + 1] = found[place + 1]
  answer[#answer + 1] = facts[1] or ''
  answer[#answer + 1] = is_seen(facts[2], now) and 1 or 0
end
return answer

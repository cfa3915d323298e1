-- watch_schedule: read schedules of a queue, and note that a worker declares them.
--
-- KEYS[1]  ZSET  next ticks by name
-- KEYS[2]  HASH  the queue's state
-- ARGV[1..]  str  names
--
-- Returns  list  the server's ms; then for each name its next tick, 'inf' if it is paused and '' if
--                there is none, and its declaration: nil if it never had one, '' if it was removed

-- Include: time
-- Include: schedule
local answer = {now}
for place = 1, #ARGV do
  local name = ARGV[place]
  local facts = redis.call('HMGET', KEYS[2], declared_in(name), seen_in(name))
  local tick = redis.call('ZSCORE', KEYS[1], name)
  if tick and math.abs(now - tonumber(facts[2] or 0)) >= SEEN_MS then
    redis.call('HSET', KEYS[2], seen_in(name), now)
  end
  answer[#answer + 1] = tick or ''
  answer[#answer + 1] = facts[1]
end
return answer

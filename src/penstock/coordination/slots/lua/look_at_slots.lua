-- look_at_slots: read the holders of slots and how many callers wait.
--
-- KEYS[1]  ZSET  holders by the end of their lease
-- KEYS[2]  HASH  from a ticket to the time until which it counts; `n:<ticket>` is how many callers
--                wait with it
--
-- Returns  {waiting, holder, end of its lease in server ms, …}

-- Include: time
local reply, found = {0}, redis.call('HGETALL', KEYS[2])
for place = 1, #found, 2 do
  if now < (tonumber(found[place + 1]) or 0) then
    reply[1] = reply[1] + (tonumber(redis.call('HGET', KEYS[2], 'n:' .. found[place]) or 1) or 1)
  end
end
for _, word in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')) do
  reply[#reply + 1] = word
end
return reply

-- look_at_slots: tell who holds slots and how many wait; change nothing.
--
-- KEYS[1]  ZSET  holders by the end of their lease
-- KEYS[2]  HASH  from a ticket to the time until which it counts
--
-- Returns  {waiting, holder, end of its lease in server ms, …}

-- Include: time
local told = {0}
for _, deadline in ipairs(redis.call('HVALS', KEYS[2])) do
  if now < (tonumber(deadline) or 0) then told[1] = told[1] + 1 end
end
for _, word in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')) do
  told[#told + 1] = word
end
return told

-- begin_growth: announce that a topic will have more partitions.
--
-- KEYS[1]  HASH  the topic's metadata
-- ARGV[1]  int   partitions that it will have
-- ARGV[2]  int   ms for producers to learn of it
--
-- Returns  list   1, partitions now, generation now, ms until producers stop
--                 0, partitions now: not more than it has; nothing written
--                -1, partitions to which it is growing already; nothing written
--          nil    there is no such topic

local facts = redis.call('HMGET', KEYS[1], 'partitionCount', 'generation', 'growing', 'switchAt')
local count, wanted = tonumber(facts[1] or 0), tonumber(ARGV[1])
if count == 0 then return false end
if wanted <= count then return {0, count} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local switch = tonumber(facts[4] or 0)
if not facts[3] then
  switch = now + ARGV[2]
  redis.call('HSET', KEYS[1], 'growing', wanted, 'switchAt', switch)
elseif tonumber(facts[3]) ~= wanted then
  return {-1, tonumber(facts[3])}
end
return {1, count, tonumber(facts[2] or 1), math.max(0, switch - now)}

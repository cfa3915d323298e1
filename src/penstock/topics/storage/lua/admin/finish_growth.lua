-- finish_growth: let a topic have the partitions that were announced.
--
-- Flags: allow-oom  producers wait until this is done
--
-- KEYS[1]  HASH  the topic's metadata
-- ARGV[1]  int   partitions that it has from now on
-- ARGV[2]  int   its next generation
-- ARGV[3..]  str  ids of the markers in the partitions that it had, in their order
--
-- Returns  1  done, now or before
--          0  that growth is not under way: the topic was deleted meanwhile

local facts = redis.call('HMGET', KEYS[1], 'partitionCount', 'generation', 'growing')
if facts[1] and (tonumber(facts[2]) or 1) >= tonumber(ARGV[2]) then return 1 end
if not facts[1] or facts[3] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('HDEL', KEYS[1], 'growing', 'switchAt')
for i = 3, #ARGV do
  redis.call('HSET', KEYS[1], 'barrier:' .. ARGV[2] .. ':' .. (i - 3), ARGV[i])
end
redis.call('HSET', KEYS[1], 'partitionCount', ARGV[1], 'generation', ARGV[2], 'updatedAt', now)
return 1

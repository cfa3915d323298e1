-- create_topic: note a topic's number of partitions, unless it has one.
--
-- KEYS[1]  HASH  the topic's facts
-- ARGV[1]  int   partitions, if the topic is new; 0: do not create it
-- ARGV[2]  str   id of this life of the topic, if it is new
-- ARGV[3]  str   the topic's options as JSON, '' to leave them as they are
--
-- Returns  list  created (1 or 0), partitions (0 if there is no topic, -1 if that is no number),
--                generation, life,
--                partitions it is growing to (0 if it is not), ms until it has to have grown,
--                options as JSON

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count = redis.call('HGET', KEYS[1], 'partitionCount')
local created = 0
if not count then
  if ARGV[1] == '0' then return {0, 0, 0, '', 0, 0, ''} end
  created = 1
  count = ARGV[1]
  redis.call('HSET', KEYS[1], 'partitionCount', count)
end
-- A topic of the Java library has no more than its number of partitions. Where all is there
-- nothing is written, so that facts can be read from a full server.
if redis.call('HEXISTS', KEYS[1], 'life') == 0 then
  redis.call('HSETNX', KEYS[1], 'generation', 1)
  redis.call('HSETNX', KEYS[1], 'createdAt', now)
  redis.call('HSET', KEYS[1], 'life', ARGV[2])
end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'options', ARGV[3], 'updatedAt', now) end
local facts = redis.call('HMGET', KEYS[1], 'generation', 'life', 'growing', 'switchAt', 'options')
local switch = 0
if facts[4] then switch = math.max(0, (tonumber(facts[4]) or 0) - now) end
return {created, tonumber(count) or -1, tonumber(facts[1]) or 1, facts[2], tonumber(facts[3]) or 0,
  switch, facts[5] or ''}

-- push_jobs: add jobs to a queue or one of its lanes, all of them or none.
--
-- KEYS[1]  LIST  the queue's plain list; the list of a lane is named after it
-- KEYS[2]  HASH  the queue's state
-- KEYS[3]  HASH  counters
-- KEYS[4]  LIST  the overflow
-- KEYS[5]  LIST  the ring of fair lanes
-- KEYS[6]  ZSET  parked lanes
-- ARGV[1]  str   lane, '' for the plain list
-- ARGV[2]  str   the queue's name
-- ARGV[3]  str   'right' or 'left'
-- ARGV[4]  str   policy for a full list: 'reject', 'dlq' or 'drop_oldest'
-- ARGV[5]  int   most jobs in the list, 0 for any number
-- ARGV[6]  int   most bytes in the queue's lists, 0 for any number
-- ARGV[7]  int   most jobs in the overflow
-- ARGV[8..]  str  the jobs
--
-- Returns  list  1 if they were added, 0 if the list is full; its length now; jobs moved aside;
--                jobs dropped

-- Include: time
-- Include: records
-- Include: lanes
-- Include: overflow
local list, lane, count, bytes = list_of(KEYS[1], ARGV[1]), ARGV[1], #ARGV - 7, 0
local most, most_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
if most_bytes > 0 then
  for place = 8, #ARGV do bytes = bytes + #ARGV[place] end
end
local room, moved, dropped = true, 0, 0
if most_bytes > 0 or (most > 0 and redis.call('LLEN', list) + count > most) then
  room, moved, dropped = make_room(list, KEYS[4], KEYS[3], KEYS[2], ARGV[2], ARGV[3], ARGV[4],
    most, most_bytes, tonumber(ARGV[7]), count, bytes, iso(now), now, function() end)
end
if not room then
  redis.call('HINCRBY', KEYS[3], 'rejected', count)
  return {0, redis.call('LLEN', list), 0, 0}
end
local was_empty = not PRIORITIES[lane] and redis.call('EXISTS', list) == 0
local length = redis.call(ARGV[3] == 'left' and 'LPUSH' or 'RPUSH', list, unpack(ARGV, 8))
if lane ~= '' then
  enlist(KEYS[5], KEYS[6], lane, was_empty)
  redis.call('HSETNX', KEYS[2], 'lanes', 1)
end
if most_bytes > 0 then redis.call('HINCRBY', KEYS[2], 'bytes', bytes) end
redis.call('HINCRBY', KEYS[3], 'added', count)
return {1, length, moved, dropped}

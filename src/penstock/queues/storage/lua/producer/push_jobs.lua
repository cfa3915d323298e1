-- push_jobs: add jobs to a queue or one of its lanes, all of them or none.
--
-- Unchecked: every job passes here; the body checks what it reads or writes
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
-- ARGV[4]  str   policy for a full list: 'reject', 'dlq', 'drop_oldest', or 'block' for a try that
--                is not counted as rejected
-- ARGV[5]  int   most jobs in the list, 0 for any number
-- ARGV[6]  int   most bytes in the queue's lists, 0 for any number
-- ARGV[7]  int   most jobs in the overflow
-- ARGV[8]  str   beginning of the names of records
-- ARGV[9]  str   beginning of the names of the indexes by state
-- ARGV[10] str   beginning of the names of unique keys
-- ARGV[11] int   ms for which a final record is kept
-- ARGV[12] int   most fair lanes with jobs, 0 for any number
-- ARGV[13..]  str  the jobs
--
-- Returns  list  1 if they were added, 0 if the list is full, 3 if there is some more room and this
--                is to be called again, 4 if too many fair lanes have jobs and this would be one more;
--                its length now; jobs moved aside; jobs dropped; those moved or dropped that are
--                compressed, see `note_losses`

local list, lane, count, bytes = KEYS[1], ARGV[1], #ARGV - 12, 0
if lane ~= '' then list = list .. ':' .. lane end
local most, most_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local push = ARGV[3] == 'left' and 'LPUSH' or 'RPUSH'
-- Include: types
-- Include: wakeup
local known = redis.pcall('HEXISTS', KEYS[2], 'bytes')
if type(known) == 'table' then return fault_in('HASH', KEYS[2]) end
local counts_bytes = known == 1 or most_bytes > 0
local length = most > 0 and redis.pcall('LLEN', list) or 0
if type(length) == 'table' then return fault_in('LIST', list) end
local is_full = most > 0 and length + count > most

-- The list always comes last: what is wrong with another key is found before a job is there.
-- Most pushes end here, without what the others need.
if lane == '' and not counts_bytes and not is_full then
  local counted = redis.pcall('HINCRBY', KEYS[3], 'added', count)
  if type(counted) == 'table' then return fault_in('HASH', KEYS[3]) or counted end
  local added = redis.pcall(push, list, unpack(ARGV, 13))
  if type(added) == 'table' then
    if counted == count then
      redis.call('HDEL', KEYS[3], 'added')
    else
      redis.call('HINCRBY', KEYS[3], 'added', -count)
    end
    return fault_in('LIST', list) or added
  end
  wake(KEYS[5], count > 1 and 2 or 1)
  return {1, added, 0, 0, {}}
end
local fault = fault_in('LIST', list) or fault_in('HASH', KEYS[3])
  or lane ~= '' and (fault_in('LIST', KEYS[5]) or fault_in('ZSET', KEYS[6]))
if fault then return fault end

-- Include: lanes
-- Before room is made: a list that loses all its jobs for this one keeps its place in the ring.
local is_new_lane = opens_lane(lane, list)
if is_new_lane and has_all_lanes(KEYS[1], KEYS[5], tonumber(ARGV[12])) then
  if ARGV[4] ~= 'block' then redis.call('HINCRBY', KEYS[3], 'rejected', count) end
  return {4, 0, 0, 0, {}}
end
if counts_bytes then
  for place = 13, #ARGV do bytes = bytes + #ARGV[place] end
end
local moved, dropped, packed = 0, 0, {}
if most_bytes > 0 or is_full then
-- Include: time
-- Include: records
-- Include: losses
-- Include: overflow
  local room
  room, moved, dropped, fault = make_room(list, KEYS[4], KEYS[3], KEYS[2], ARGV[9], ARGV[2],
    ARGV[3], ARGV[4], most, most_bytes, tonumber(ARGV[7]), count, bytes, iso(now), now, lane,
    function(item) note_loss(ARGV[8], ARGV[9], item, now, ARGV[11], ARGV[10]) end, packed)
  if fault then return fault end
  if not room then
    if ARGV[4] ~= 'block' then redis.call('HINCRBY', KEYS[3], 'rejected', count) end
    return {0, redis.call('LLEN', list), 0, 0, {}}
  end
  if room == 'again' and count > 1 then return {3, redis.call('LLEN', list), moved, dropped, packed} end
end
redis.call('HINCRBY', KEYS[3], 'added', count)
if counts_bytes then redis.call('HINCRBY', KEYS[2], 'bytes', bytes) end
if lane ~= '' then
  redis.call('HSETNX', KEYS[2], 'lanes', 1)
  enlist(KEYS[5], KEYS[6], lane, is_new_lane)
end
local added = redis.call(push, list, unpack(ARGV, 13))
wake(KEYS[5], count > 1 and 2 or 1)
return {1, added, moved, dropped, packed}

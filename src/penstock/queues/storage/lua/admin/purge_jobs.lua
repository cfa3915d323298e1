-- purge_jobs: take waiting jobs out of a lane, and close their records.
--
-- Only jobs that are still there, byte by byte, are removed: claimed ones stay with their workers.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[2]  LIST  the ring of fair lanes
-- KEYS[3]  HASH  the queue's state
-- KEYS[4]  HASH  counters
-- ARGV[1]  str   lane, '' for the plain list
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  int   ms for which a final record is kept
-- ARGV[5..]  str  for each its job; how many were to be claimed before it; its id as records are
--                 named, '' for none; its unique key, '' for none
--
-- Returns  int  how many were taken out

redis.call('HDEL', KEYS[3], '')
-- Include: time
-- Include: records
-- Include: lanes
-- Include: audit
-- Include: pull
local list = list_of(KEYS[1], ARGV[1])
local fault = fault_in('LIST', list) or fault_in_number(KEYS[3], 'bytes')
  or fault_in_number(KEYS[4], 'purged') or fault_in_indexes(ARGV[3])
if fault then return fault end

local facts = redis.call('HMGET', KEYS[3], 'side', 'bytes')
local from = facts[1] == 'left' and -1 or 1
local removed, freed, last, at = 0, 0, 0, iso(now)
for place = 5, #ARGV, 4 do
  local item, before, id, unique = unpack(ARGV, place, place + 3)
  local index = locate(list, item, before, from)
  if index then
    strike(list, index)
    last = index
    removed, freed = removed + 1, freed + #item
    if id ~= '' then
      close(ARGV[2] .. id, ARGV[3], id, 'cancelled', now, ARGV[4],
        {'error', 'purged', 'error_type', 'Purged'}, at)
      redis.pcall('SREM', cancelled_beside(ARGV[3]), id)
    end
    forget(unique, id)
  end
end
remove_struck(list, removed, last)
if facts[2] and freed > 0 then
  redis.call('HSET', KEYS[3], 'bytes', math.max(0, tonumber(facts[2]) - freed))
end
-- A lane that is left in the ring without jobs would be put there twice by the next job. It stands there
-- once; a purge of all lanes begins with the first, which is found at once.
if not PRIORITIES[ARGV[1]] and redis.call('EXISTS', list) == 0 then
  if redis.call('LINDEX', KEYS[2], 0) == ARGV[1] then redis.call('HSET', KEYS[3], 'credit', 0) end
  redis.call('LREM', KEYS[2], 1, ARGV[1])
  index_lane(KEYS[2], ARGV[1], false)
end
sweep(ARGV[3], 'cancelled', now, ARGV[4])
if removed > 0 then redis.call('HINCRBY', KEYS[4], 'purged', removed) end
return removed

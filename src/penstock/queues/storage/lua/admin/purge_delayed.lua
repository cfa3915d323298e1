-- purge_delayed: take away jobs that are not yet due, and close their records.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  ids of jobs not yet due
-- KEYS[2]  HASH  jobs not yet due
-- KEYS[3]  HASH  counters
-- ARGV[1]  str   beginning of the names of records
-- ARGV[2]  str   beginning of the names of the indexes by state
-- ARGV[3]  int   ms for which a final record is kept
-- ARGV[4..]  str  for each its id as records are named; its unique key, '' for none
--
-- Returns  int  how many were taken away

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: records
-- Include: audit
local fault = fault_in_number(KEYS[3], 'purged') or fault_in_indexes(ARGV[2])
if fault then return fault end
local removed, at = 0, iso(now)
for place = 4, #ARGV, 2 do
  local id, unique = ARGV[place], ARGV[place + 1]
  if redis.call('ZREM', KEYS[1], id) == 1 then
    redis.call('HDEL', KEYS[2], id)
    close(ARGV[1] .. id, ARGV[2], id, 'cancelled', now, ARGV[3],
      {'error', 'purged', 'error_type', 'Purged'}, at)
    forget(unique, id)
    removed = removed + 1
  end
end
sweep(ARGV[2], 'cancelled', now, ARGV[3])
if removed > 0 then redis.call('HINCRBY', KEYS[3], 'purged', removed) end
return removed

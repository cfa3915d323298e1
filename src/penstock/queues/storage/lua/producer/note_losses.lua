-- note_losses: close the records of compressed jobs that a full queue has dropped or moved aside.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  jobs that have failed
-- ARGV[1]  str   beginning of the names of records
-- ARGV[2]  str   beginning of the names of the indexes by state
-- ARGV[3]  int   ms for which a final record is kept
-- ARGV[4..]  str  for each job its id, and its unique key, '' for none
--
-- Returns  int  how many had a record that was still open

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: records
local fault = fault_in_indexes(ARGV[2])
if fault then return fault end
local closed = 0
for place = 4, #ARGV, 2 do
  local id, unique = ARGV[place], ARGV[place + 1]
  local record = ARGV[1] .. id
  if close(record, ARGV[2], id, 'failed', now, ARGV[3]) then
    redis.call('HSET', record, 'error', 'dropped from a full queue', 'error_type', 'Overflow')
    closed = closed + 1
  end
  forget(unique, id)
  redis.pcall('SREM', cancelled_beside(ARGV[2]), id)
end
return closed

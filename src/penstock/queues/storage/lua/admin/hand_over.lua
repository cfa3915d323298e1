-- hand_over: release claimed jobs that are in another queue now, and close their records here.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET    live workers of the queue
-- KEYS[2]  HASH    the worker's claims
-- KEYS[3]  HASH    counters
-- KEYS[4]  STREAM  what people did to the queue
-- ARGV[1]  str     worker
-- ARGV[2]  str     who
-- ARGV[3]  str     the queue they went to
-- ARGV[4]  str     beginning of the names of records
-- ARGV[5]  str     beginning of the names of the indexes by state
-- ARGV[6]  int     ms for which a final record is kept
-- ARGV[7..]  str   for each its claim; its id as records are named, '' for none; its unique key, ''
--                  for none
--
-- Returns  int  how many were let go
--          -1   the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return -1 end
-- Include: time
-- Include: records
-- Include: audit
local fault = fault_in_number(KEYS[3], 'moved') or fault_in_indexes(ARGV[5])
if fault then return fault end
local gone, at = 0, iso(now)
for place = 7, #ARGV, 3 do
  local claim, id, unique = unpack(ARGV, place, place + 2)
  if redis.call('HDEL', KEYS[2], claim) == 1 then
    gone = gone + 1
    if id ~= '' then
      close(ARGV[4] .. id, ARGV[5], id, 'cancelled', now, ARGV[6],
        {'error', 'moved to queue ' .. ARGV[3], 'error_type', 'Moved'}, at)
      forget(unique, id)
      redis.pcall('SREM', cancelled_beside(ARGV[5]), id)
    end
  end
end
sweep(ARGV[5], 'cancelled', now, ARGV[6])
if gone > 0 then
  redis.call('HINCRBY', KEYS[3], 'moved', gone)
  note_act(KEYS[4], ARGV[2], 'move', gone, 'to ' .. ARGV[3])
end
return gone

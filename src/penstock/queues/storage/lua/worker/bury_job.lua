-- bury_job: put a job in hand into the dead letters, if the worker still has it.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  LIST  the dead letters
-- KEYS[7]  HASH  counters
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms for which a final record is kept
-- ARGV[6]  str   claim
-- ARGV[7]  str   job id
-- ARGV[8]  str   its unique key, '' for none
-- ARGV[9]  str   the letter
-- ARGV[10..]  str  names and values of the record
--
-- Returns   1  it is buried
--           0  it was not in hand; nothing written
--          -1  the worker was given up as dead; nothing written

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.pcall('HINCRBY', KEYS[7], 'stale', 1)
  return -1
end
if redis.call('HEXISTS', KEYS[2], ARGV[6]) == 0 then return 0 end
-- Include: time
-- Include: records
-- Include: lanes
local fault = fault_in_indexes(ARGV[3])
if fault then return fault end
redis.pcall('HINCRBY', KEYS[7], 'dead', 1)
redis.call('RPUSH', KEYS[6], ARGV[9])
redis.call('HDEL', KEYS[2], ARGV[6])
free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], ARGV[6])
close(ARGV[2] .. ARGV[7], ARGV[3], ARGV[7], 'failed', now, ARGV[5], {unpack(ARGV, 10)})
sweep(ARGV[3], 'failed', now, ARGV[5])
forget(ARGV[8], ARGV[7])
redis.pcall('SREM', cancelled_beside(ARGV[3]), ARGV[7])
return 1

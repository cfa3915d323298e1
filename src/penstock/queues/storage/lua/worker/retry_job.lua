-- retry_job: let a job in hand wait for its next attempt, if the worker still has it.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  ZSET  ids of jobs not yet due
-- KEYS[7]  HASH  jobs not yet due
-- KEYS[8]  HASH  counters
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  str   claim
-- ARGV[6]  str   job id
-- ARGV[7]  str   the job as it is to be tried next
-- ARGV[8]  int   ms to wait
-- ARGV[9]  str   what to count it as: 'retried', or 'parked' if it was not even tried
-- ARGV[10..]  str  names and values of the record
--
-- Returns   1  it waits
--           0  it was not in hand; nothing written
--          -1  the worker was given up as dead; nothing written

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.pcall('HINCRBY', KEYS[8], 'stale', 1)
  return -1
end
if redis.call('HEXISTS', KEYS[2], ARGV[5]) == 0 then return 0 end
-- Include: time
-- Include: records
-- Include: lanes
local fault = fault_in_indexes(ARGV[3])
if fault then return fault end
local lane = lane_in(ARGV[5])
local member = ARGV[6]
if redis.call('HEXISTS', KEYS[7], member) == 1 then  -- other programs may give two jobs one id
  member = member .. ' ' .. ARGV[1] .. ' ' .. ARGV[5]
end
redis.call('ZADD', KEYS[6], now + ARGV[8], member)
redis.call('HSET', KEYS[7], member, 'f' .. lane .. '\n' .. ARGV[7])
redis.call('HDEL', KEYS[2], ARGV[5])
free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], ARGV[5])
turn(ARGV[2] .. ARGV[6], ARGV[3], ARGV[6], 'retrying', now, {unpack(ARGV, 10)})
redis.pcall('HINCRBY', KEYS[8], ARGV[9], 1)
return 1

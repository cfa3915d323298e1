-- cancel_job: end a job that has not begun, or ask the one that runs to stop.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  HASH    the job's record
-- KEYS[2]  ZSET    ids of jobs not yet due
-- KEYS[3]  HASH    jobs not yet due
-- KEYS[4]  HASH    counters
-- KEYS[5]  SET     jobs that were cancelled while they waited
-- ARGV[1]  str     job id
-- ARGV[2]  str     beginning of the names of the indexes by state
-- ARGV[3]  int     ms for which a final record is kept
-- ARGV[4]  str     beginning of the names of unique keys
--
-- Returns   2  cancelled; if it is on a list, workers skip it there
--           1  it runs, and was asked to stop
--           0  it had ended
--          -1  there is no such job

redis.call('ZREM', KEYS[2], '')
-- Include: time
-- Include: records
local facts = redis.call('HMGET', KEYS[1], 'status', 'unique')
if not facts[1] then return -1 end
if not LEGAL[facts[1]] then return 0 end
if facts[1] == 'processing' then
  redis.call('HSET', KEYS[1], 'cancel_asked', iso(now))
  return 1
end
local fault = fault_in_indexes(ARGV[2])
if fault then return fault end
close(KEYS[1], ARGV[2], ARGV[1], 'cancelled', now, ARGV[3])
sweep(ARGV[2], 'cancelled', now, ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[3], ARGV[1]) == 0 then  -- it is on a list
  redis.call('SADD', KEYS[5], ARGV[1])
  redis.call('PERSIST', KEYS[5])  -- an earlier version gives it a time to live
end
-- The record has the whole key, which an earlier version may have spelled with another beginning.
local unique = string.match(facts[2] or '', '[^:]+$')
if unique then forget(ARGV[4] .. unique, ARGV[1]) end
redis.pcall('HINCRBY', KEYS[4], 'cancelled', 1)
return 2

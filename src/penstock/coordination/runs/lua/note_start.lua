-- note_start: note that a task of a run began.
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- KEYS[8]  STRING  the time at which the task began first
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     the task, as JSON: name and map index
-- ARGV[3]  str     this start of it, as JSON: name, map index, attempt
-- ARGV[4]  int     ms for which a final run is kept, and the time of the first start
--
-- Returns   1  it is the first start of this task
--           0  it began before
--          -1  no such run

-- Include: time
-- Include: runs
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local earlier = answered(ARGV[1])
if earlier then return tonumber(earlier) end
local first = redis.call('HSETNX', KEYS[7], ARGV[2], now)
redis.call('HSETNX', KEYS[7], ARGV[3], now)
if first == 1 then redis.call('SET', KEYS[8], iso(now), 'PX', ARGV[4]) end
redis.call('HSET', KEYS[1], 'updated_ms', now)
remember(ARGV[1], first)
see_to_end(ARGV[4])
return first

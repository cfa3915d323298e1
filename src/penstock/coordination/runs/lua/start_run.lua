-- start_run: make the record of a run, unless there is one.
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     the run's id
-- ARGV[3]  str     kind
-- ARGV[4]  int     about so many events are kept
-- ARGV[5]  str     name of the field that has the run's id
-- ARGV[6..]  str   names and values of facts
--
-- Returns   1  made by this call
--           0  there is one; nothing written

-- Include: time
-- Include: runs
if redis.call('EXISTS', KEYS[1]) == 1 then return answered(ARGV[1]) and 1 or 0 end
-- What is left of an earlier run of this id, if its record was deleted by hand.
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
redis.call('HSET', KEYS[1], ARGV[5], ARGV[2], 'kind', ARGV[3], 'status', 'created',
  'version', 1, 'start_time', iso(now), 'started_ms', now, 'updated_ms', now, unpack(ARGV, 6))
tell(ARGV[4], 'started', cjson.encode({run = ARGV[2], kind = ARGV[3], version = 1}))
remember(ARGV[1], 1)
return 1

-- resolve_failure: let a failure in a run be settled.
--
-- Flags: allow-oom  it makes room
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     id of what had failed
-- ARGV[3]  int     ms for which a final run is kept
-- ARGV[4]  int     about so many events are kept
--
-- Returns   1  it was open
--           0  it was not; nothing written
--          -1  no such run

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if redis.call('ZREM', KEYS[5], ARGV[2]) == 0 then return answered(ARGV[1]) and 1 or 0 end
redis.call('HDEL', KEYS[6], ARGV[2])
redis.call('HSET', KEYS[1], 'updated_ms', now)
tell(ARGV[4], 'resolved', cjson.encode({item = ARGV[2], processed = false}))
remember(ARGV[1], 1)
see_to_end(ARGV[3])
return 1

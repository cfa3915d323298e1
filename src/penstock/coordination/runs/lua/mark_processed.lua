-- mark_processed: note what a run has processed; failures of it are resolved.
--
-- Flags: allow-oom  work that is done is noted on a full server, too
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  int     ms for which a final run is kept
-- ARGV[3]  int     about so many events are kept
-- ARGV[4..]  str   ids
--
-- Returns  int  how many of them are new, -1 for no such run

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local earlier = answered(ARGV[1])
if earlier then return tonumber(earlier) end
local new, has_failures = 0, redis.call('EXISTS', KEYS[5]) == 1
for i = 4, #ARGV do
  new = new + redis.call('SADD', KEYS[4], ARGV[i])
  if has_failures and redis.call('ZREM', KEYS[5], ARGV[i]) == 1 then
    redis.call('HDEL', KEYS[6], ARGV[i])
    tell(ARGV[3], 'resolved', cjson.encode({item = ARGV[i], processed = true}))
  end
end
if new > 0 then
  tell(ARGV[3], 'progress', cjson.encode({new = new, processed = redis.call('SCARD', KEYS[4])}))
end
redis.call('HSET', KEYS[1], 'updated_ms', now)
remember(ARGV[1], new)
see_to_end(ARGV[2])
return new

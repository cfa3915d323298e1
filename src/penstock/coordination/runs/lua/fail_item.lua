-- fail_item: note that something failed in a run, how often it has by now, and when to try again.
--
-- Flags: allow-oom  the end of an attempt is noted on a full server, too
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- KEYS[8]  LIST    what the hourly lists of failures begin with; the hour (UTC) follows
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     id of what failed
-- ARGV[3]  str     class of the error
-- ARGV[4]  str     its message
-- ARGV[5]  str     ms until the next attempt, 'never', or '' to double the wait each time
-- ARGV[6]  int     ms of the first such wait
-- ARGV[7]  int     ms of the longest
-- ARGV[8]  int     calls that the attempt made
-- ARGV[9]  int     ms for which a final run is kept
-- ARGV[10] int     about so many events are kept
-- ARGV[11] int     ms for which an hourly list is kept
--
-- Returns  int  failed attempts so far; 0 if it was processed meanwhile and nothing was written;
--               -1 for no such run

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
local id = ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local earlier = answered(ARGV[1])
if earlier then return tonumber(earlier) end
if redis.call('SISMEMBER', KEYS[4], id) == 1 then return 0 end

local known, info = pcall(cjson.decode, redis.call('HGET', KEYS[6], id) or '')
if not known or type(info) ~= 'table' then info = {attempts = 0, api_calls = 0, first_ms = now} end
local seen = type(info.last_ms) == 'number' and hour_of(info.last_ms)
info.attempts = (tonumber(info.attempts) or 0) + 1
info.api_calls = (tonumber(info.api_calls) or 0) + ARGV[8]
info.error_type, info.error, info.last_ms = ARGV[3], ARGV[4], now
local wait = tonumber(ARGV[5])
if ARGV[5] == '' then wait = math.min(ARGV[6] * 2 ^ math.min(info.attempts - 1, 40), ARGV[7]) end
local due = ARGV[5] ~= 'never' and math.ceil(now + wait) or nil
redis.call('ZADD', KEYS[5], due or '+inf', id)
redis.call('HSET', KEYS[6], id, cjson.encode(info))
local list = KEYS[8] .. hour_of(now)
if seen ~= hour_of(now) then
  -- Once an hour, not once per attempt. The list is a view: it may be read late.
  if redis.pcall('LPUSH', list, id) == 1 then redis.call('PEXPIRE', list, ARGV[11]) end
end
redis.call('HSET', KEYS[1], 'updated_ms', now)
tell(ARGV[10], 'failed', cjson.encode({
  item = id, attempts = info.attempts, error_type = ARGV[3], error = ARGV[4], due_ms = due}))
remember(ARGV[1], info.attempts)
see_to_end(ARGV[9])
return info.attempts

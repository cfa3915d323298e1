-- count_hour: count calls in the clock hour of the server, if its limit has room for all of them.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  what the counters of all hours begin with; the hour (UTC) follows
-- ARGV[1]  int     calls; 0 to look
-- ARGV[2]  int     limit
-- ARGV[3]  int     calls of the limit that are never given out
-- ARGV[4]  int     ms for which a counter is kept, at least until its hour is over
--
-- Returns  {calls in the hour, 1 if they were counted or none was to be, server ms}
--          an error if no hour could ever have room for so many, or the counter is no number

redis.pcall('HDEL', KEYS[1], '')  -- a write that needs no memory: the others may follow it
-- Include: time
-- Include: calendar
local HOUR = 3600000
local calls, most = tonumber(ARGV[1]), ARGV[2] - ARGV[3]
if not calls or calls < 0 or calls ~= math.floor(calls) then
  return redis.error_reply('ERR calls must be a whole number from 0 on')
end
if calls > most then
  return redis.error_reply('ERR no hour has room for more than ' .. most .. ' calls')
end

local counter = KEYS[1] .. hour_of(now)
local fault = fault_in('STRING', counter)
if fault then return fault end
local found = redis.call('GET', counter)
local count = string.match(found or '0', '^-?%d+$') and tonumber(found or 0)
if not count then return redis.error_reply('ERR the counter of the hour is no number') end

local allowed = 1
if calls > 0 then
  if count + calls > most then
    allowed = 0
  else
    count = redis.call('INCRBY', counter, calls)
  end
end
-- Also for a counter that another program created without a TTL.
if (found or calls > 0) and redis.call('PTTL', counter) == -1 then
  redis.call('PEXPIRE', counter, math.max(ARGV[4], HOUR - now % HOUR))
end
return {count, allowed, now}

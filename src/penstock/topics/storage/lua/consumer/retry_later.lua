-- retry_later: note when failed messages are due again; they stay pending meanwhile.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  ZSET    the group's retries
-- KEYS[3]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3..]  str   id, ms until it is due, failures as JSON; the next id, …
--
-- Returns  int  the server's time in ms
--          -1   the partition is not the caller's any more; nothing written

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Before version 7, a full server refuses a script whose first write needs memory.
redis.call('HDEL', KEYS[3], '')
for i = 3, #ARGV, 3 do
  redis.call('ZADD', KEYS[2], now + ARGV[i + 1], ARGV[i])
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 2])
end
return now

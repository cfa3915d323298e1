-- find_dead: give up workers of a queue that have been silent for too long.
--
-- From then on they get and acknowledge nothing. A sign of life from the future is from before the
-- server's clock was set back: its time begins now. A worker that asks lives, and if it was silent for
-- too long itself, the others may get more time: see beat_queue. One that died while it read claims
-- of another is counted: see open_claims. One call looks at MANY silent workers; the next at more.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue, by their last sign of life in server ms
-- KEYS[2]  ZSET  dead workers of the queue whose claims are to be returned
-- KEYS[3]  HASH  jobs that workers may have died of, and which worker reads or tries which
-- KEYS[4]  HASH  the queue's state
-- ARGV[1]  int   ms of silence after which a worker is dead
-- ARGV[2]  str   the worker that asks, '' for a caller that is not a worker
-- ARGV[3]  int   longest time in ms for which the worker itself was paused since its last sign
--
-- Returns  list  dead workers whose claims are to be returned, 100 of them at the most

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: silence
local MANY = 100
redis.call('HDEL', KEYS[3], ARGV[2])
local own, silence_ms = redis.call('ZSCORE', KEYS[1], ARGV[2]), tonumber(ARGV[1])
if own and tonumber(own) <= now - silence_ms then
  note_outage(KEYS[1], KEYS[4], now, silence_ms, tonumber(ARGV[3]))
  redis.call('ZADD', KEYS[1], now, ARGV[2])
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + silence_ms, '+inf', 'LIMIT', 0, MANY)) do
  redis.call('ZADD', KEYS[1], now, worker)
end

-- When a worker counts as heard of after an outage; nil if it has had that time, or gave a sign since.
local upto, noted, paused = string.match(redis.call('HGET', KEYS[4], 'outage') or '', '^(%d+) (%d+) ([01])$')
local function extended(last)
  if not upto or last % 1 > 0 or last > tonumber(upto) or tonumber(noted) > now then return nil end
  return (paused == '1' and last + silence_ms or noted) + 0.5
end

local function give_up(worker)
  redis.call('ZREM', KEYS[1], worker)
  redis.call('ZADD', KEYS[2], now, worker)
  local what = redis.call('HGET', KEYS[3], worker)
  if what then
    redis.call('HDEL', KEYS[3], worker)
    if redis.call('ZSCORE', KEYS[2], string.match(what, '^[^\n]*')) then
      redis.pcall('HINCRBY', KEYS[3], '!' .. what, 1)
    end
  end
end

local silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - silence_ms, 'WITHSCORES', 'LIMIT', 0, MANY)
for place = 1, #silent, 2 do
  local since = extended(tonumber(silent[place + 1]))
  if since and since > now - silence_ms then
    redis.call('ZADD', KEYS[1], since, silent[place])
  else
    give_up(silent[place])
  end
end
return redis.call('ZRANGE', KEYS[2], 0, 99)

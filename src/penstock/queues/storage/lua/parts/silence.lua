-- Include: tending
-- Gives silent workers more time if no worker gave a sign of life within the silence allowed, so that
-- an outage of the server, or of all workers at once, costs no worker its membership.
--
-- If the worker that calls did run meanwhile, the server was away or its clock was set forward: the
-- others get the time of a whole silence from now. If the caller itself was paused for that long, they
-- get twice the silence since their last sign. Each gets this once since its last sign: the fraction
-- of its score says so. A worker that is dead is therefore found, whatever the others do.
--
-- The outage is noted in the queue's state: the latest sign before it; when it was noted; 1 if the
-- caller was paused. A worker gets its time when find_dead comes to it, however many there are.
local function note_outage(workers, state, now, silence_ms, paused_ms)
  if redis.call('ZCOUNT', workers, '(' .. now - silence_ms, now) > 0 then return end
  redis.pcall('HSET', state, 'outage', string.format('%.0f %.0f %d', now - silence_ms, now,
    paused_ms < silence_ms and 0 or 1))
end

-- Notes a worker's sign of life: a sum of 1, 2 if no process tends the queue and 4 if its tender has
-- found a key of another type; or 0 if the worker was given up as dead. One whose last sign was too long
-- ago, and that was not given up, goes on; see above what that means for the others.
local function note_sign(workers, state, worker, now, silence_ms, paused_ms)
  local last = redis.pcall('ZSCORE', workers, worker)
  if not last then return 0 end
  if type(last) == 'table' then return fault_in('ZSET', workers) end
  if tonumber(last) <= now - silence_ms then note_outage(workers, state, now, silence_ms, paused_ms) end
  redis.call('ZADD', workers, now, worker)
  local facts = redis.pcall('HMGET', state, 'tended_until', 'foreign')
  if facts.err then return 1 end
  return 1 + (is_tended(facts[1], now) and 0 or 2) + (facts[2] and 4 or 0)
end

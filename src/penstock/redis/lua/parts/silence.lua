-- Gives silent workers more time if no worker gave a sign of life within the silence allowed, so that
-- an outage of the server, or of all workers at once, costs nobody its membership.
--
-- If the worker that calls did run meanwhile, the server was away or its clock was set forward: the
-- others get the time of a whole silence from now. If the caller itself was paused for that long, they
-- get twice the silence since their last sign. Each gets this once since its last sign: the fraction
-- of its score says so. A worker that is dead is therefore found, whatever the others do.
local function extend_silence(workers, now, silence_ms, paused_ms)
  if redis.call('ZCOUNT', workers, '(' .. now - silence_ms, now) > 0 then return end
  local found = redis.call('ZRANGEBYSCORE', workers, '-inf', now - silence_ms, 'WITHSCORES')
  for place = 1, #found, 2 do
    local last = tonumber(found[place + 1])
    if last % 1 == 0 then
      local since = paused_ms < silence_ms and now or last + silence_ms
      redis.call('ZADD', workers, since + 0.5, found[place])
    end
  end
end

-- Notes a worker's sign of life: a sum of 1, 2 if no process tends the queue and 4 if its tender has
-- found a key of another type; or 0 if the worker was given up as dead. One whose last sign was too long
-- ago, and that was not given up, goes on; see above what that means for the others.
local function note_sign(workers, state, worker, now, silence_ms, paused_ms)
  local last = redis.pcall('ZSCORE', workers, worker)
  if not last then return 0 end
  if type(last) == 'table' then return fault_in('ZSET', workers) end
  if tonumber(last) <= now - silence_ms then extend_silence(workers, now, silence_ms, paused_ms) end
  redis.call('ZADD', workers, now, worker)
  local facts = redis.pcall('HMGET', state, 'tended_until', 'foreign')
  if facts.err then return 1 end
  return 1 + ((tonumber(facts[1] or 0) or 0) > now and 0 or 2) + (facts[2] and 4 or 0)
end

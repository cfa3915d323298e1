-- Callers that wait for a limit, in their order: those of higher priority first, then by arrival.
-- A ticket holds "cost deadline"; one past its deadline is of a caller that has gone.
local PRIORITY_STEP = 1e12

-- What those before `score` want together; the dead among them leave.
local function wanted_before(score)
  local total, ahead, dead = 0, 0, {}
  local names = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. string.format('%.0f', score))
  for from = 1, #names, 1000 do
    local some = {unpack(names, from, math.min(#names, from + 999))}
    for place, ticket in ipairs(redis.call('HMGET', KEYS[4], unpack(some))) do
      local cost, deadline = string.match(ticket or '', '^(%d+) (%d+)$')
      if cost and tonumber(deadline) >= now then
        total, ahead = total + cost, ahead + 1
      else
        dead[#dead + 1] = some[place]
      end
    end
  end
  for _, ticket in ipairs(dead) do
    redis.call('ZREM', KEYS[3], ticket)
    redis.call('HDEL', KEYS[4], ticket)
  end
  return total, ahead
end

local function stand_in_line(ticket, priority, cost, ticket_ms)
  if not redis.call('ZSCORE', KEYS[3], ticket) then
    state.s = state.s + 1
    redis.call('ZADD', KEYS[3], string.format('%.0f', state.s - priority * PRIORITY_STEP), ticket)
  end
  redis.call('HSET', KEYS[4], ticket, string.format('%.0f %.0f', cost, now + ticket_ms))
  redis.call('PEXPIRE', KEYS[3], math.ceil(2 * ticket_ms) + 1000)
  redis.call('PEXPIRE', KEYS[4], math.ceil(2 * ticket_ms) + 1000)
  state.l = 1
end

local function leave_line(ticket)
  redis.call('ZREM', KEYS[3], ticket)
  redis.call('HDEL', KEYS[4], ticket)
  if redis.call('EXISTS', KEYS[3]) == 0 then state.l = 0 end
end

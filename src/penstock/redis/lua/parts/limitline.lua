-- Callers that wait for a limit, in their order: those of higher priority first, then by arrival.
-- A ticket holds "cost deadline"; one past its deadline is of a caller that has gone.
local PRIORITY_STEP = 4e12  -- more than any id

if state[7] == 2 then
  local told = redis.call('HGETALL', KEYS[4])
  for place = 1, #told, 2 do
    local cost = string.match(told[place + 1], '^%d+')
    redis.call('HSET', KEYS[4], told[place], string.format('%s %.0f', cost, now + ARGV[8]))
  end
  state[7] = 1
end

-- What those before a caller want together, and how many they are; the dead among them leave.
function line.before(ticket, priority)
  if state[7] == 0 then return 0, 0 end
  local own = ticket ~= '' and redis.call('ZSCORE', KEYS[3], ticket)
  local score = tonumber(own or -priority * PRIORITY_STEP + PRIORITY_STEP)
  local total, ahead, dead = 0, 0, {}
  local names = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. string.format('%.0f', score))
  for from = 1, #names, 1000 do
    local some = {unpack(names, from, math.min(#names, from + 999))}
    for place, told in ipairs(redis.call('HMGET', KEYS[4], unpack(some))) do
      local cost, deadline = string.match(told or '', '^(%d+) (%d+)$')
      if cost and tonumber(deadline) >= now then
        total, ahead = total + cost, ahead + 1
      else
        dead[#dead + 1] = some[place]
      end
    end
  end
  for _, name in ipairs(dead) do
    redis.call('ZREM', KEYS[3], name)
    redis.call('HDEL', KEYS[4], name)
  end
  if ahead == 0 and redis.call('EXISTS', KEYS[3]) == 0 then state[7] = 0 end
  return total, ahead
end

function line.stand(ticket, priority, cost, ticket_ms)
  if not redis.call('ZSCORE', KEYS[3], ticket) then
    state[3] = state[3] + 1
    local score = state[8] + state[3] - priority * PRIORITY_STEP
    redis.call('ZADD', KEYS[3], string.format('%.0f', score), ticket)
  end
  redis.call('HSET', KEYS[4], ticket, string.format('%.0f %.0f', cost, now + ticket_ms))
  redis.call('PEXPIRE', KEYS[3], math.ceil(2 * ticket_ms) + 1000)
  redis.call('PEXPIRE', KEYS[4], math.ceil(2 * ticket_ms) + 1000)
  state[7] = 1
end

function line.leave(ticket)
  redis.call('ZREM', KEYS[3], ticket)
  redis.call('HDEL', KEYS[4], ticket)
  if redis.call('EXISTS', KEYS[3]) == 0 then state[7] = 0 end
end

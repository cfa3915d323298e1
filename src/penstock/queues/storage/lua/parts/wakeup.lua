-- Tokens that wake idle workers. They block with BLPOP on one list per queue, named beside its ring
-- of lanes: each token wakes exactly one of them. While all are busy the tokens stay, so whatever
-- adds jobs only looks. A token that is lost costs time, never a job: see tend_queues.

local function wakeup_of(ring)
  return string.sub(ring, 1, -5) .. 'wakeup'
end

-- Lets up to `most` tokens be there; whether one was added. A foreign key in their place is left.
local function wake(ring, most)
  local wakeup = wakeup_of(ring)
  local there = redis.pcall('LLEN', wakeup)
  if type(there) == 'table' or there >= most then return false end
  redis.pcall('RPUSH', wakeup, 1)
  return true
end

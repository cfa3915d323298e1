-- Removes the entries of a sorted set up to a score, the lowest first: a bounded number per call.
-- Returns how many.
local MOST_SWEPT = 200
local function sweep_upto(key, score)
  local over = redis.call('ZCOUNT', key, '-inf', score)
  if over == 0 then return 0 end
  return redis.call('ZREMRANGEBYRANK', key, 0, math.min(over, MOST_SWEPT) - 1)
end

-- Whether a process tends a queue until the given ms. A lease that ends in more than a minute is from
-- before the server's clock was set back.
local function is_tended(ends_ms, now)
  local left_ms = (tonumber(ends_ms or 0) or 0) - now
  return left_ms > 0 and left_ms <= 60000
end

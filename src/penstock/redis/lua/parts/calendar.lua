-- The time in UTC as people write it.

local function civil(ms)
  local floor = math.floor
  local seconds = floor(ms / 1000)
  local days = floor(seconds / 86400)
  local rest = seconds - days * 86400
  local shifted = days + 719468
  local era = floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - floor((153 * mp + 2) / 5) + 1,
    floor(rest / 3600), floor(rest % 3600 / 60), rest % 60, ms - seconds * 1000
end

-- 2024-09-17T14:05:09.250Z
local function iso(ms)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', civil(ms))
end

-- 2024-09-17_14
local function hour_of(ms)
  local year, month, day, hour = civil(ms)
  return string.format('%04d-%02d-%02d_%02d', year, month, day, hour)
end


-- Takes items out of a list that were seen at certain places, counted from one end: 1 is the left,
-- -1 the right. What is to go is marked, and all marks go at once: the server walks a long list
-- once, and not once for each item.

local MARK = '\0' .. time[1] .. '.' .. time[2]
-- An item may have shifted since it was seen. For one that is gone, the server would otherwise
-- compare the whole list.
local SHIFTED = 1000

-- Returns where an item is, or nothing.
local function locate(list, item, place, from)
  local index = from == 1 and tonumber(place) or -place - 1
  if redis.call('LINDEX', list, index) == item then return index end
  return redis.call('LPOS', list, item, 'RANK', from, 'MAXLEN', place + SHIFTED)
end

local function strike(list, index)
  redis.call('LSET', list, index, MARK)
end

-- Goes in from the end that is nearer to what was struck last.
local function remove_struck(list, count, last)
  if count == 0 then return end
  local length = redis.call('LLEN', list)
  local from_left = last < 0 and length + last or last
  redis.call('LREM', list, from_left * 2 > length and -count or count, MARK)
end

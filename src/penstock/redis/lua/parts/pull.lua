-- Takes an item out of a list, if it stands within so many of one end: 1 is the left, -1 the right.
-- For one that has gone meanwhile the server would otherwise compare the whole list.
local SHIFTED = 1000
local function pull(list, item, within, from)
  if not redis.call('LPOS', list, item, 'RANK', from, 'MAXLEN', within + SHIFTED) then return 0 end
  return redis.call('LREM', list, from, item)
end

-- pending_page: what earlier owners left pending, in the order of its ids.
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- KEYS[3]  ZSET    the group's retries
-- KEYS[4]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  str     id to begin with; ( before it: the one after
-- ARGV[4]  int     most messages to return
-- ARGV[5]  int     bytes of messages after which no more are returned
--
-- Returns  list  for each: id, attempts counted, ms until it is due again (1 if it is due, 0 if it
--                did not fail), failures as JSON or '', fields (an empty list if the message is not
--                in the stream any more)
--          -1    the partition is not the caller's any more

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local page, size = {}, 0
for _, pending in ipairs(redis.call('XPENDING', KEYS[2], ARGV[1], ARGV[3], '+', ARGV[4])) do
  if size >= tonumber(ARGV[5]) then break end
  local id = pending[1]
  local due = redis.call('ZSCORE', KEYS[3], id)
  local found = redis.call('XRANGE', KEYS[2], id, id)
  for _, part in ipairs(found[1] and found[1][2] or {}) do size = size + #part end
  page[#page + 1] = {
    id, pending[4], due and math.max(1, due - now) or 0,
    redis.call('HGET', KEYS[4], id) or '', found[1] and found[1][2] or {},
  }
end
return page

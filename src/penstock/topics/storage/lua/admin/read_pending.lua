-- read_pending: what a group has pending in a partition, in the order of ids, for display.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  ZSET    the group's retries
-- KEYS[3]  HASH    the group's failures
-- KEYS[4]  STRING  the lease
-- ARGV[1]  str     group
-- ARGV[2]  str     id to begin with; ( before it: the one after
-- ARGV[3]  int     most messages to return; fewer where they are many or large
--
-- Returns  list  the owner or nil; 1 if there may be more, else 0; then for each: id, attempts counted, idle ms, ms until it is due
--                (-1: it is not waiting), failures as JSON or '', 1 if the message is there, its key
--                or nil, the id that it carries or nil
--          -1    there is no such group here

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local known = false
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  known = known or group[2] == ARGV[1]
end
if not known then return -1 end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, bytes, MOST_BYTES = math.min(ARGV[3], 500), 0, 1048576
local page = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', count)
local answer = {redis.call('GET', KEYS[4]), #page == count and 1 or 0}
for _, pending in ipairs(page) do
  if bytes > MOST_BYTES then
    answer[2] = 1
    break
  end
  local id = pending[1]
  local due = redis.call('ZSCORE', KEYS[2], id)
  local found = redis.call('XRANGE', KEYS[1], id, id)[1]
  local line = {
    id, pending[4], pending[3], due and math.max(0, due - now) or -1,
    redis.call('HGET', KEYS[3], id) or '', found and 1 or 0, false, false,
  }
  for i = 1, found and #found[2] or 0, 2 do
    bytes = bytes + #found[2][i + 1]
    if found[2][i] == 'key' then line[7] = found[2][i + 1] end
    if found[2][i] == 'messageId' then line[8] = found[2][i + 1] end
  end
  answer[#answer + 1] = line
end
return answer

-- due_retries: failed messages whose time has come. Members that are no ids are removed.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- KEYS[3]  ZSET    the group's retries
-- KEYS[4]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  int     most messages to return that are due by the server's clock
-- ARGV[4]  int     bytes of messages after which no more are returned
-- ARGV[5..]  str   ids that are due by the owner's own clock: the server's may have been set back
--
-- Returns  list  ms until the next is due (-1: none is waiting, 0: more are due, but there were too
--                many bytes); then for each as pending_page
--          -1    the partition is not the caller's any more

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, ARGV[3])
local seen = {}
for _, id in ipairs(due) do seen[id] = true end
for i = 5, #ARGV do
  if not seen[ARGV[i]] and redis.call('ZSCORE', KEYS[3], ARGV[i]) then due[#due + 1] = ARGV[i] end
end
local answer, size = {-1}, 0
for _, id in ipairs(due) do
  if size >= tonumber(ARGV[4]) then
    answer[1] = 0
    return answer
  end
  local pending = {err = 'stream ID'}
  if string.match(id, '^%d+%-%d+$') then
    pending = redis.pcall('XPENDING', KEYS[2], ARGV[1], id, id, 1)
  end
  if pending.err then
    -- Not an id: no retry of ours, and it would block all others.
    if not string.find(pending.err, 'stream ID', 1, true) then return pending end
    redis.call('ZREM', KEYS[3], id)
  elseif pending[1] then
    local found = redis.call('XRANGE', KEYS[2], id, id)
    for _, part in ipairs(found[1] and found[1][2] or {}) do size = size + #part end
    answer[#answer + 1] = {
      id, pending[1][4], 0, redis.call('HGET', KEYS[4], id) or '', found[1] and found[1][2] or {},
    }
  else
    answer[#answer + 1] = {id, 0, 0, '', {}}
  end
end
local next = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if next[2] then answer[1] = math.max(1, next[2] - now) end
return answer

-- await_jobs: read jobs that are awaited, and have the ends of unfinished ones published.
--
-- Flags: allow-oom  who waits on a full server must hear of the end
--
-- KEYS[1]  ZSET  jobs that are queued
-- ARGV[1]  str   beginning of the names of records
-- ARGV[2..]  str  ids as records are named
--
-- Returns  list  for each 0 if it has not ended, and its end will be published on the channel `ended`
--                beside the indexes by state; else its state, result and error, without a state if it
--                has no record; 1 instead if the answer is large without it and it is to be asked for
--                again; or the error for a key of another type

redis.call('ZREM', KEYS[1], '')
-- Include: records
local MOST_BYTES = 1048576
local answer, bytes = {}, 0
for place = 2, #ARGV do
  local record = ARGV[1] .. ARGV[place]
  local found = redis.pcall('HMGET', record, 'status', 'waited')
  if found.err then
    answer[#answer + 1] = fault_in('HASH', record)
  elseif found[1] and LEGAL[found[1]] then
    if not found[2] then redis.call('HSET', record, 'waited', 1) end
    answer[#answer + 1] = 0
  elseif bytes >= MOST_BYTES then
    answer[#answer + 1] = 1
  else
    found = redis.call('HMGET', record, 'status', 'result', 'error')
    bytes = bytes + #(found[2] or '')
    answer[#answer + 1] = found
  end
end
return answer

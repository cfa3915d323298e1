-- await_jobs: look at jobs whose ends somebody waits for, and have the ends of the others announced.
--
-- Flags: allow-oom  who waits on a full server must hear of the end
--
-- KEYS[1]  ZSET  jobs that are queued
-- ARGV[1]  str   beginning of the names of records
-- ARGV[2..]  str  ids as records are named
--
-- Returns  list  for each 0 if it has not ended, and its end will be published on the channel `ended`
--                beside the indexes by state; else its state, result and error, without a state if it
--                has no record; or the error for a key of another type

redis.call('ZREM', KEYS[1], '')
-- Include: records
local answer = {}
for place = 2, #ARGV do
  local record = ARGV[1] .. ARGV[place]
  local found = redis.pcall('HMGET', record, 'status', 'waited')
  if found.err then
    answer[#answer + 1] = fault_in('HASH', record)
  elseif found[1] and LEGAL[found[1]] then
    if not found[2] then redis.call('HSET', record, 'waited', 1) end
    answer[#answer + 1] = 0
  else
    answer[#answer + 1] = redis.call('HMGET', record, 'status', 'result', 'error')
  end
end
return answer

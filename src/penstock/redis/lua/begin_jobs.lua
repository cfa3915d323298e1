-- begin_jobs: note that jobs in hand are about to run, and tell which of them may not.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4..]  str  for each job its claim; its id, '' for a job without a record; its attempt; the
--                 job as it is to stand in the claims from now on, '' to leave it
--
-- Returns  list  for each job 1 to run it, 2 if it was cancelled, 0 if it is not in hand or has ended
--          int   -1  the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return -1 end
-- Include: time
-- Include: records
local answer = {}
for place = 4, #ARGV, 4 do
  local claim, id, attempt, item = unpack(ARGV, place, place + 3)
  local verdict = redis.call('HEXISTS', KEYS[2], claim)
  if verdict == 1 and id ~= '' then
    local record, index = ARGV[2] .. id, ARGV[3]
    local status = redis.call('HGET', record, 'status')
    if not status then  -- pushed by a program that keeps no records
      redis.call('HSET', record, 'job_id', id, 'status', 'queued', 'submitted_at', iso(now))
      redis.call('ZADD', index .. 'queued', now, id)
      status = 'queued'
    end
    if status == 'processing' then  -- its worker died, or let it go
      redis.call('ZREM', index .. 'processing', id)
      redis.call('HSET', record, 'status', 'queued')
    end
    if status == 'cancelled' then
      verdict = 2
    elseif turn(record, index, id, 'processing', now) then
      redis.call('HSET', record, 'started_at', iso(now), 'worker', ARGV[1], 'claim', claim,
        'attempt', attempt, 'retry_count', attempt - 1)
    else
      verdict = 0
    end
  end
  if verdict == 1 and item ~= '' then redis.call('HSET', KEYS[2], claim, item) end
  answer[#answer + 1] = verdict
end
return answer

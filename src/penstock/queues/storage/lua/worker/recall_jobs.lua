-- recall_jobs: let jobs that were set aside be due now, because there is a place for them.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  ids of jobs not yet due
-- KEYS[2]  ZSET  those of the jobs not yet due that were set aside
-- ARGV[1]  int   most jobs to let be due, 250 at the most
--
-- Returns  int  how many are due now

-- Include: time
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local ids, scores = {}, {}
for place = 1, #found, 2 do
  local id = found[place]
  -- Another time says that it has come back meanwhile, and waits for something else.
  if redis.call('ZSCORE', KEYS[1], id) == found[place + 1] then
    scores[#scores + 1] = string.format('%.3f', now - 1 + place / 1000)
    scores[#scores + 1] = id
  end
  ids[#ids + 1] = id
end
if ids[1] then redis.call('ZREM', KEYS[2], unpack(ids)) end
if scores[1] then redis.call('ZADD', KEYS[1], unpack(scores)) end
return #scores / 2

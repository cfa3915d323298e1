-- Unique keys: one that has no time to live is held until its job ends, and names that job.

-- Include: inhand
-- Whether a job may be anywhere in the queue. `queue` names its keys: waiting, ring, parked, delayed,
-- workers, dead_workers, and claims, the beginning of the names of claims by worker.
local function may_have_jobs(queue, lane)
  local waiting = queue.waiting
  return redis.call('EXISTS', waiting, waiting .. ':high', waiting .. ':normal', waiting .. ':low',
    waiting .. ':' .. lane, queue.ring, queue.parked, queue.delayed) > 0
    or may_have_claims({queue.workers, queue.dead_workers}, queue.claims)
end

-- The job that holds a unique key; nil if it is free, which it also is if its job has ended or
-- vanished without letting it go: other programs may take jobs off a list. A key with a time to live
-- holds for that time, and so does what cannot be the id of a job. An error reply if it is a key of another type.
local function holder_of(unique, records, queue, lane)
  local holder = redis.pcall('GET', unique)
  if type(holder) ~= 'string' then return holder or nil end
  if redis.call('PTTL', unique) >= 0 or not string.match(holder, '^[A-Za-z0-9_.+@=%%-]+$') then
    return holder
  end
  local status = status_in(records .. holder)
  if status and not LEGAL[status] then return nil end
  return may_have_jobs(queue, lane) and holder or nil
end

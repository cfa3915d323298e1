-- Jobs that were in the hands of worker after worker that died, and never begun: suspects. Each is
-- taken alone, as a trial, so that the next death is its own. All stand in one hash: '~' and a job's
-- name for a suspect, '?' and a worker for the claim of its trial, a worker for what it reads of a dead
-- one, '!' and the latter for how many died of that.

-- Names a job by its bytes: no worker survives reading its id.
local function suspect_name(item)
  return '~' .. redis.sha1hex(string.sub(item, 1, 65536)) .. #item
end

-- Whether workers may have jobs in hand. `sets` name the live and the dead ones, `claims` is the
-- beginning of the names of claims by worker. Where there are very many, they may.

local MOST_WORKERS = 100

local function may_have_claims(sets, claims)
  for _, set in ipairs(sets) do
    local workers = redis.pcall('ZRANGE', set, 0, MOST_WORKERS)
    if workers.err or #workers > MOST_WORKERS then return true end
    for _, worker in ipairs(workers) do
      if redis.call('EXISTS', claims .. worker) == 1 then return true end
    end
  end
  return false
end

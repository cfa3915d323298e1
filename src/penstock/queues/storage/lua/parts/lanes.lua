-- Lanes of a queue: '' is the plain list, the others hang on its name. A fair lane is in the
-- ring while it has jobs and is not parked. Whatever adds jobs wakes a worker for them.

-- Include: wakeup

local PRIORITIES = {[''] = 1, high = 1, normal = 1, low = 1}
-- Scores of parked lanes that no time sets free: at the limit of their jobs, and paused.
local AT_LIMIT, PAUSED = 9e15, 9e15 + 1

local function list_of(waiting, lane)
  return lane == '' and waiting or waiting .. ':' .. lane
end

-- The index of fair lanes that have jobs, wherever they are listed: see relist_lane. A foreign key in its
-- place costs no job.
local function index_lane(ring, lane, has_jobs)
  redis.pcall(has_jobs and 'SADD' or 'SREM', string.sub(ring, 1, -5) .. 'lanes', lane)
end

local function enlist(ring, parked, lane, was_empty)
  if PRIORITIES[lane] or not was_empty then return end
  index_lane(ring, lane, true)
  if not redis.call('ZSCORE', parked, lane) then redis.call('RPUSH', ring, lane) end
end

-- Whether a job would be the first of its fair lane.
local function opens_lane(lane, list)
  return not PRIORITIES[lane] and redis.call('EXISTS', list) == 0
end

-- Names in the index of lanes that are looked at when it has too many.
local MOST_STALE = 20

-- Whether as many fair lanes have jobs as may, 0 for any number. Where other programs take jobs, or
-- whole lists, the index may name lanes that have none: some leave it with each call that finds it full.
local function has_all_lanes(waiting, ring, most)
  local index = string.sub(ring, 1, -5) .. 'lanes'
  local count = most > 0 and redis.pcall('SCARD', index) or 0
  if type(count) == 'table' or count < most or most == 0 then return false end
  count = count - redis.call('SISMEMBER', index, '')
  if count < most then return false end
  for _, lane in ipairs(redis.call('SRANDMEMBER', index, MOST_STALE)) do
    if lane ~= '' and redis.call('EXISTS', list_of(waiting, lane)) == 0 then
      redis.call('SREM', index, lane)
      count = count - 1
    end
  end
  return count >= most
end

-- Puts one job at the front, where the next claim finds it, or at the back. `is_new_lane` is for callers
-- that have emptied the list for it: its lane still stands in the ring.
local function put(waiting, ring, parked, state, side, lane, item, at_front, is_new_lane)
  local list = list_of(waiting, lane)
  if is_new_lane == nil then is_new_lane = opens_lane(lane, list) end
  local left = (side == 'left') ~= at_front
  redis.call(left and 'LPUSH' or 'RPUSH', list, item)
  enlist(ring, parked, lane, is_new_lane)
  if redis.call('HEXISTS', state, 'bytes') == 1 then
    redis.pcall('HINCRBY', state, 'bytes', #item)
  end
end

-- The lane in the name of a claim: '17' is of the plain list, '17:high' of another.
local function lane_in(field)
  if not string.find(field, ':', 1, true) then return '' end
  return string.match(field, '^%d+:(.+)$') or ''
end

-- Frees the place of a claim in its lane, where places are limited.
local function free(running, ring, parked, waiting, worker, field)
  local lane = lane_in(field)
  if lane == '' then return end
  redis.pcall('SREM', running .. lane, worker .. ' ' .. field)
  if tonumber(redis.call('ZSCORE', parked, lane) or 0) == AT_LIMIT then
    redis.call('ZREM', parked, lane)
    enlist(ring, parked, lane, redis.call('EXISTS', list_of(waiting, lane)) == 1)
    wake(ring, 1)
  end
end

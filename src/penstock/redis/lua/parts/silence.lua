-- Lets every worker have given its last sign of life now.
local function begin_time_anew(workers, now)
  for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
    redis.call('ZADD', workers, now, worker)
  end
end

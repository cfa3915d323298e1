  -- Every admitted call with its weight is in a log; what is in a window is summed up as calls
  -- come and leave. `edge`: what is logged up to there is not in the window any more; `oldest`:
  -- nothing that is in it was logged before.
  local function weight_of(member)
    return tonumber(string.match(member, '%*(%d+)$') or 1)
  end

  local function sum(from, to)
    local total = 0
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, to)) do
      total = total + weight_of(member)
    end
    return total
  end

  if set_back then
    -- These were logged by a clock that ran ahead: count them as of now.
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')) do
      redis.call('ZADD', KEYS[1], now, member)
    end
    state[4], state[6] = now, 0
  end

  local function find_oldest(window)
    local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. window.edge, '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    window.oldest = tonumber(found[2] or 0)
  end

  function algo.begin(window)
    window.edge = now - window.ms
    window.used = sum('(' .. window.edge, '+inf')
    find_oldest(window)
  end

  function algo.advance(window)
    local edge = now - window.ms
    if edge <= window.edge then return end
    if window.used > 0 and edge >= window.oldest then
      window.used = window.used - sum('(' .. window.edge, edge)
      if window.ms == longest then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', edge) end
      window.edge = edge
      find_oldest(window)
    end
    window.edge = edge
  end

  function algo.room(window)
    return window.limit - window.used
  end

  function algo.reset(window)
    return window.used > 0 and state[4] + window.ms - now or 0
  end

  function algo.take(count, at)
    local member = string.format(count == 1 and '%.0f' or '%.0f*%.0f', state[3], count)
    redis.call('ZADD', KEYS[1], at, member)
    for place = 1, #windows do
      local window = windows[place]
      if window.used == 0 or at < window.oldest then window.oldest = at end
      window.used = window.used + count
    end
    if state[6] < at + longest then
      state[6] = at + 2 * longest
      redis.call('PEXPIRE', KEYS[1], state[6] - now + 1000)
    end
  end

  -- The ms until `need` more have left a window.
  function algo.wait(window, need)
    local place, leaves = 0, now
    while need > 0 do
      local some = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. window.edge, '+inf', 'WITHSCORES',
        'LIMIT', place, 100)
      if not some[1] then return window.ms end
      for index = 1, #some, 2 do
        need = need - weight_of(some[index])
        leaves = tonumber(some[index + 1]) + window.ms
        if need <= 0 then break end
      end
      place = place + 100
    end
    return leaves - now
  end

  -- Lets call `id` of `old` weigh `new`, as of `at` if that is earlier.
  function algo.change(id, old, new, logged_at, at)
    local member = old == 1 and id or id .. '*' .. old
    local score = redis.call('ZSCORE', KEYS[1], member)
    if not score then return 0 end
    redis.call('ZREM', KEYS[1], member)
    score = tonumber(score)
    local to = at and at < score and at or score
    for _, window in ipairs(windows) do
      if score > window.edge then
        window.used = window.used - old + new
        if new > 0 and to < window.oldest then window.oldest = to end
      end
    end
    if new > 0 then redis.call('ZADD', KEYS[1], to, new == 1 and id or id .. '*' .. new) end
    return old - new
  end

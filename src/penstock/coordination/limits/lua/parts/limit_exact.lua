  -- Every admitted call with its weight is in a log; what is in a window is summed up as calls
  -- come and leave. `edge`: what is logged up to there is not in the window any more; `oldest`:
  -- nothing that is in it was logged before.
  -- Of a long log so many entries are read to compute a wait, and so many leave a window, per call.
  local MOST_READ, MOST_LEAVING = 2000, 2000

  local function weight_of(member)
    local weight = string.match(member, '^c%d+%*?(%d*)$')
    return weight == '' and 1 or tonumber(weight or 0)  -- others do not ask, and do not count
  end

  local function member_of(number, weight)
    return string.format(weight == 1 and 'c%.0f' or 'c%.0f*%.0f', number, weight)
  end

  local function sum(from, to)
    local total = 0
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, to)) do
      total = total + weight_of(member)
    end
    return total
  end

  if set_back then
    -- These were logged by a clock that ran ahead.
    local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')
    for place = 1, #ahead, 2 do
      redis.call('ZADD', KEYS[1], retimed(tonumber(ahead[place + 1])), ahead[place])
    end
  elseif is_new then
    -- A log that has outlived its state: its calls count, and its numbers are taken. So do those
    -- of another program, under numbers of our own.
    local found, foreign = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), {}
    for place = 1, #found, 2 do
      local number = string.match(found[place], '^c(%d+)')
      if number and #number > 15 then number = nil end
      if tonumber(found[place + 1]) > now + longest then
        found[place + 1] = string.format('%.0f', now)  -- no time that we can have logged
        redis.call('ZADD', KEYS[1], now, found[place])
      end
      state[3] = math.max(state[3], tonumber(number or 0))
      state[4] = math.max(state[4], tonumber(found[place + 1]))
      if not number then foreign[#foreign + 1] = place end
    end
    for _, place in ipairs(foreign) do
      state[3] = state[3] + 1
      redis.call('ZADD', KEYS[1], found[place + 1], member_of(state[3], 1))
      redis.call('ZREM', KEYS[1], found[place])
    end
  end

  local function find_oldest(window)
    local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. window.edge, '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    window.oldest = tonumber(found[2] or 0)
    if not found[2] and window.ms == longest then state[6] = 0 end  -- a new log has no TTL
  end

  local function log(count, at)
    redis.call('ZADD', KEYS[1], at, member_of(state[3], count))
    if state[6] < at + longest then
      state[6] = at + 2 * longest
      redis.call('PEXPIRE', KEYS[1], state[6] - now + 1000)
    end
  end

  function algo.begin(window)
    window.edge = now - window.ms
    window.used = sum('(' .. window.edge, '+inf')
    find_oldest(window)
  end

  algo.renew = algo.begin

  local adopted, reach = 0, nil
  function algo.adopt(window, count)
    if count > adopted then
      -- Those of a window that are not in the one before it were no later than its edge.
      state[3] = state[3] + 1
      log(count - adopted, reach and now - reach or state[4])
      adopted = count
    end
    window.edge, window.used, reach = now - window.ms, adopted, window.ms
    window.since = state[3]
    find_oldest(window)
  end

  -- What of a window has been logged up to `edge`, and up to where that is all of it: where a lot
  -- leaves at once, the rest is counted as if it were still there, and leaves with the next calls.
  local function leaving(window, edge)
    local from, total = '(' .. window.edge, 0
    local some = redis.call('ZRANGEBYSCORE', KEYS[1], from, edge, 'WITHSCORES', 'LIMIT', 0, MOST_LEAVING)
    local last = #some
    if last == 2 * MOST_LEAVING then
      local cut = some[last]  -- there may be more of this moment: it waits, unless there is no other
      while last > 0 and some[last] == cut do last = last - 2 end
      if last == 0 then return sum(from, cut), tonumber(cut) end
      edge = tonumber(some[last])
    end
    for place = 1, last, 2 do total = total + weight_of(some[place]) end
    return total, edge
  end

  function algo.advance(window)
    local edge = now - window.ms
    if edge <= window.edge then return end
    if window.used > 0 and edge >= state[4] then
      window.used = 0  -- whether the log is still there or has expired
      if window.ms == longest then
        redis.call('UNLINK', KEYS[1])
        state[6] = 0
      end
    elseif window.used > 0 and edge >= window.oldest then
      local gone
      gone, edge = leaving(window, edge)
      window.used = window.used - gone
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
    log(count, at)
    for place = 1, #windows do
      local window = windows[place]
      if window.used == 0 or at < window.oldest then window.oldest = at end
      window.used = window.used + count
    end
  end

  -- The ms until `need` more have left a window; of a long log with weights, until the earliest time
  -- at which they may have. What was read of the log is kept for the next question of this call.
  local walks = {}
  function algo.wait(window, need)
    if need > window.used then return math.huge end
    local walk = walks[window]
    if not walk then
      local first = redis.call('ZCOUNT', KEYS[1], '-inf', window.edge)
      walk = {first = first, sums = {}, ends = {},
        is_plain = window.used == redis.call('ZCARD', KEYS[1]) - first}
      walks[window] = walk
    end
    if walk.is_plain then
      local place = walk.first + need - 1
      local found = redis.call('ZRANGE', KEYS[1], place, place, 'WITHSCORES')
      return found[2] and tonumber(found[2]) + window.ms - now or math.huge
    end
    local sums, ends = walk.sums, walk.ends
    while (sums[#sums] or 0) < need and #sums < MOST_READ do
      local place = walk.first + #sums
      local some = redis.call('ZRANGE', KEYS[1], place, place + 99, 'WITHSCORES')
      if not some[1] then return math.huge end
      for index = 1, #some, 2 do
        sums[#sums + 1] = (sums[#sums] or 0) + weight_of(some[index])
        ends[#ends + 1] = tonumber(some[index + 1]) + window.ms
      end
    end
    local low, high = 1, #sums
    while low < high do
      local middle = math.floor((low + high) / 2)
      if sums[middle] >= need then high = middle else low = middle + 1 end
    end
    return ends[low] - now
  end

  function algo.period(window)
    return window.ms
  end

  function algo.reported(window, used, reset)
    window.extra, window.extra_until = math.max(0, used - window.used), now + reset
  end

  function algo.change(number, old, new, logged_at, at)
    local member = member_of(number, old)
    local score = tonumber(redis.call('ZSCORE', KEYS[1], member) or -1)
    if score < 0 then
      if number > windows[1].since or new <= old or logged_at <= now - longest then return 0 end
      -- Another algorithm has counted it, with others: only a higher count can be recorded.
      state[3], state[4] = state[3] + 1, math.max(state[4], now)
      algo.take(new - old, now)
      return old - new
    end
    local to, is_inside = at and at < score and at or score, false
    for _, window in ipairs(windows) do
      if score > window.edge then
        is_inside = true
        window.used = window.used - old + new
        if new > 0 and to < window.oldest then window.oldest = to end
      end
    end
    -- In this order: a log that is empty for a moment loses its TTL.
    if new > 0 then redis.call('ZADD', KEYS[1], to, member_of(number, new)) end
    if new ~= old then redis.call('ZREM', KEYS[1], member) end
    if new == 0 and redis.call('EXISTS', KEYS[1]) == 0 then state[6] = 0 end
    return is_inside and old - new or 0
  end

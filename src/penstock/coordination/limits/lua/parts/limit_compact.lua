  -- A window is cut into buckets, and a bucket leaves as a whole, when its last moment has: never
  -- more than the limit, a part in `buckets` less. The ring has place for buckets to come, as calls
  -- taken in advance count from their end. `edge`: number of the newest bucket in reach. A ring
  -- keeps the number of buckets that it began with.
  local SIZE = 4

  for _, window in ipairs(windows) do
    window.count = #window.ring / SIZE
    window.buckets = window.count - 1 - AHEAD
  end

  local function number_of(at, window)
    return math.floor(at * window.buckets / window.ms)
  end

  local function count_in(window, number)
    local place = number % window.count * SIZE
    return (struct.unpack('>I4', window.ring, place + 1))
  end

  local function put(window, number, count)
    local place = number % window.count * SIZE
    window.ring = string.sub(window.ring, 1, place) .. struct.pack('>I4', count)
      .. string.sub(window.ring, place + SIZE + 1)
  end

  local function add(window, at, count)
    local number = math.min(number_of(at, window), window.edge)
    put(window, number, count_in(window, number) + count)
    window.used = window.used + count
  end

  function algo.reaches(at)
    for _, window in ipairs(windows) do
      if number_of(at, window) > window.edge then return false end
    end
    return true
  end

  local function oldest_in(window)
    return window.edge - AHEAD - window.buckets
  end

  function algo.begin(window)
    window.buckets, window.count = buckets, buckets + 1 + AHEAD
    window.ring, window.used = string.rep('\0', window.count * SIZE), 0
    window.edge, window.since = number_of(now, window) + AHEAD, state[3]
  end

  function algo.adopt(window, count)
    algo.begin(window)
    add(window, math.max(now, state[4]), count)
  end

  function algo.renew(window)
    local count = window.used
    if not window.is_known then
      -- All that is known of other periods may be in it.
      for place = HEAD + 1, #state, FIELDS do count = math.max(count, state[place + 1]) end
    end
    algo.adopt(window, count)
  end

  function algo.advance(window)
    local edge = number_of(now, window) + AHEAD
    if edge <= window.edge then return end
    if edge - window.edge >= window.count then
      window.ring, window.used = string.rep('\0', window.count * SIZE), 0
    elseif window.used > 0 then
      for number = window.edge + 1, edge do
        local gone = count_in(window, number)
        if gone > 0 then
          window.used = window.used - gone
          put(window, number, 0)
        end
      end
    end
    window.edge = edge
  end

  function algo.room(window)
    return window.limit - window.used
  end

  function algo.reset(window)
    return window.used > 0 and state[4] + window.ms * (1 + 1 / window.buckets) - now or 0
  end

  function algo.take(count, at)
    for place = 1, #windows do add(windows[place], at, count) end
  end

  function algo.wait(window, need)
    for number = oldest_in(window), window.edge do
      need = need - count_in(window, number)
      if need <= 0 then return (number + 1) * window.ms / window.buckets + window.ms - now end
    end
    return math.huge
  end

  function algo.period(window)
    return window.ms * (1 + 1 / window.buckets)
  end

  function algo.reported(window, used, reset)
    -- Of the oldest bucket some may have left the provider's window.
    local own = window.used - count_in(window, oldest_in(window))
    window.extra, window.extra_until = math.max(0, used - own), now + reset
  end

  function algo.change(number, old, new, logged_at, at)
    local changed = 0
    for _, window in ipairs(windows) do
      local bucket = number_of(logged_at, window)
      if number <= window.since then
        -- It is counted with others, as of a later time: nothing comes back.
        if new > old then add(window, now, new - old) end
      elseif bucket >= oldest_in(window) then
        bucket = math.min(bucket, window.edge)
        put(window, bucket, count_in(window, bucket) - old)
        window.used = window.used - old
        add(window, at and at < logged_at and at or logged_at, new)
        changed = old - new
      end
    end
    return changed
  end

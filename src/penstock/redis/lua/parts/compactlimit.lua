  -- A window is cut into buckets, and a bucket leaves as a whole, when its last moment has: never
  -- more than the limit, a part in `buckets` less. The ring has place for buckets to come, as calls
  -- taken in advance count from their end. `edge`: number of the newest bucket in reach.
  local AHEAD, SIZE = 27, 4
  local COUNT = buckets + 1 + AHEAD

  local function number_of(at, window)
    return math.floor(at * buckets / window.ms)
  end

  local function count_in(window, number)
    local place = number % COUNT * SIZE
    return (struct.unpack('>I4', window.ring, place + 1))
  end

  local function put(window, number, count)
    local place = number % COUNT * SIZE
    window.ring = string.sub(window.ring, 1, place) .. struct.pack('>I4', count)
      .. string.sub(window.ring, place + SIZE + 1)
  end

  local function oldest_in(window)
    return window.edge - AHEAD - buckets
  end

  function algo.begin(window)
    if set_back and window.is_known then
      window.extra, window.extra_until = math.max(window.extra, window.used), now + window.ms
    end
    window.ring, window.used = string.rep('\0', COUNT * SIZE), 0
    window.edge = number_of(now, window) + AHEAD
    if window.is_known or is_new then return end
    -- A period that was not counted before: all that is known of others may be in it.
    local most = 0
    for place = HEAD + 1, #state, FIELDS do most = math.max(most, state[place + 1]) end
    window.extra, window.extra_until = math.max(window.extra, most), now + window.ms
  end

  function algo.advance(window)
    if #window.ring ~= COUNT * SIZE then return algo.begin(window) end
    local edge = number_of(now, window) + AHEAD
    if edge <= window.edge then return end
    if edge - window.edge >= COUNT then
      window.ring, window.used = string.rep('\0', COUNT * SIZE), 0
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
    return window.used > 0 and state[4] + window.ms * (1 + 1 / buckets) - now or 0
  end

  function algo.take(count, at)
    for _, window in ipairs(windows) do
      local number = math.min(number_of(at, window), window.edge)
      put(window, number, count_in(window, number) + count)
      window.used = window.used + count
    end
  end

  function algo.wait(window, need)
    for number = oldest_in(window), window.edge do
      need = need - count_in(window, number)
      if need <= 0 then return (number + 1) * window.ms / buckets + window.ms - now end
    end
    return window.ms
  end

  function algo.change(id, old, new, logged_at, at)
    local changed = 0
    for _, window in ipairs(windows) do
      local number = number_of(logged_at, window)
      if number >= oldest_in(window) then
        number = math.min(number, window.edge)
        local has = count_in(window, number)
        local taken = math.min(old, has)
        put(window, number, has - taken)
        window.used = window.used - taken
        local to = at and at < logged_at and number_of(at, window) or number
        put(window, to, count_in(window, to) + new)
        window.used = window.used + new
        changed = old - new
      end
    end
    return changed
  end

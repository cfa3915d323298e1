  -- `used` is the ms until all that was admitted will have drained. Of a burst of b, so much drains
  -- in a period that no period has more than its limit. `edge`: ms in which one drains.
  local passed = math.max(0, now - last)

  local function interval(window)
    return window.ms / (window.limit - window.burst + 1)
  end

  function algo.begin(window)
    window.used, window.edge, window.since = 0, interval(window), state[3]
  end

  -- After `count` before, so much has to drain that a period from now on has the rest at the most.
  function algo.adopt(window, count)
    algo.begin(window)
    window.used = math.max(count + 1, window.burst) * window.edge
  end

  function algo.advance(window)
    window.used = math.max(0, window.used - passed)
    if window.edge ~= interval(window) then
      window.edge, window.since = interval(window), state[3]
    end
  end

  function algo.renew(window)
    if window.is_known then
      window.edge, window.since = interval(window), state[3]
    else
      algo.adopt(window, 0)  -- begins without a burst
    end
  end

  function algo.room(window)
    return math.floor(window.burst - window.used / window.edge + 1e-9)
  end

  -- How many can be taken until so many ms from now, each as soon as it is there.
  function algo.room_within(window, ms)
    return math.floor(window.burst - (window.used - ms) / window.edge + 1e-9)
  end

  function algo.reset(window)
    return window.used
  end

  -- Permits ahead may be used late by about as many ms: by as much the period is longer for them.
  function algo.take(count, at, early)
    for place = 1, #windows do
      local window = windows[place]
      local weight = count * (1 + early / window.ms)
      window.used = math.max(window.used, at - now) + weight * window.edge
    end
  end

  -- Also of more than a burst: those before take theirs as it drains.
  function algo.wait(window, need)
    local spare = window.burst - algo.room(window) - need
    return window.used - (spare + 1e-9) * window.edge
  end

  function algo.period() end

  function algo.reported(window, used, reset)
    -- Until the provider's reset no more drains than it has left.
    local least = (window.burst - math.max(0, window.limit - used)) * window.edge + reset
    if least > 0 then
      -- Who gives back what he took before does not change what the provider has counted.
      window.used, window.since = math.max(window.used, least), state[3]
    end
    window.extra_until = now + reset
  end

  function algo.change(number, old, new, logged_at, at)
    for _, window in ipairs(windows) do
      local back = (old - new) * window.edge
      -- What has drained since cannot be given back, nor what was hidden behind permits of others
      -- that end later, nor what drained at another pace.
      if back > 0 then
        local drained = math.max(now, state[4]) - logged_at
        back = number > window.since and math.max(0, back - math.max(0, drained)) or 0
      end
      window.used = math.max(0, window.used - back)
    end
    return old - new
  end

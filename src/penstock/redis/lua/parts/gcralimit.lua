  -- One time is kept for each window: when all that was admitted will have drained, `used`. Of a
  -- burst of b, so much drains in a period that no period has more than its limit.
  local function interval(window)
    return window.ms / (window.limit - window.burst + 1)
  end

  function algo.begin(window)
    -- A period that was not counted before begins without a burst.
    window.used = now
    if not is_new then window.used = now + window.burst * interval(window) end
  end

  function algo.advance(window)
    if window.used < now then window.used = now end
  end

  function algo.room(window)
    return math.floor((now - window.used) / interval(window) + window.burst + 1e-9)
  end

  function algo.reset(window)
    return window.used - now
  end

  function algo.take(count, at)
    for _, window in ipairs(windows) do
      if window.used < at then window.used = at end
      window.used = window.used + count * interval(window)
    end
  end

  function algo.wait(window, need)
    local room = (now - window.used) / interval(window) + window.burst
    return (algo.room(window) + need - room) * interval(window)
  end

  function algo.change(id, old, new, logged_at, at)
    for _, window in ipairs(windows) do
      -- What has drained since cannot be given back.
      local back = (old - new) * interval(window)
      if back > 0 then back = math.max(0, back - math.max(0, now - logged_at)) end
      window.used = math.max(now, window.used - back)
    end
    return old - new
  end

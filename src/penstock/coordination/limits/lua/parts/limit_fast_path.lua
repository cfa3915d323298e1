-- The commonest question, answered in the fewest steps: some permits at once or not at all, while
-- no caller waits, there is no penalty and no word of the provider, nothing leaves a log and all windows
-- have room. Whatever is otherwise is left to what follows. The compact algorithm always is.

if algorithm == state[1] and algorithm ~= 'compact' and state[7] == 0 and state[5] <= now
    and ARGV[2] == ARGV[3] and ARGV[2] ~= '0' and ARGV[5] == '0' and ARGV[6] == '' and ARGV[9] == ''
    and not set_back and (#ARGV - first) / 3 == (#state - HEAD) / FIELDS then
  local is_exact, wanted = algorithm == 'exact', tonumber(ARGV[2])
  local longest, passed, at, written = state[#state - FIELDS + 1], now - last, HEAD, 6
  local is_plain = not is_exact or state[6] >= now + longest
  for place = first + 1, #ARGV, 3 do
    local ms, used, limit = state[at + 1], state[at + 2], tonumber(ARGV[place])
    local fits
    if is_exact then
      fits = used + wanted <= limit and (used == 0 or now - ms < state[at + 4])
    else
      local burst, interval = tonumber(ARGV[place + 2]), state[at + 3]
      used = used > passed and used - passed or 0
      fits = interval == ms / (limit - burst + 1) and burst - used / interval + 1e-9 >= wanted
    end
    if not fits or ms ~= tonumber(ARGV[place + 1]) or state[at + 5] > 0 then
      is_plain = false
      break
    end
    at = at + FIELDS
  end
  if is_plain then
    local number = state[3] + 1
    state[3], at = number, HEAD
    if now > state[4] then state[4] = now end
    local reply = {wanted, 0, now, string.format('%.0f', state[8] + number), 0, 0}
    for place = first + 1, #ARGV, 3 do
      local ms, used = state[at + 1], state[at + 2]
      if is_exact then
        if used == 0 or now < state[at + 4] then state[at + 4] = now end
        if now - ms > state[at + 3] then state[at + 3] = now - ms end
        used = used + wanted
        reply[written + 1], reply[written + 2] = ARGV[place] - used, state[4] + ms - now
      else
        used = (used > passed and used - passed or 0) + wanted * state[at + 3]
        reply[written + 1] = math.floor(ARGV[place + 2] - used / state[at + 3] + 1e-9)
        reply[written + 2] = math.ceil(used)
      end
      state[at + 2], at, written = used, at + FIELDS, written + 2
    end
    if is_exact then
      local logged = redis.pcall('ZADD', KEYS[1], now,
        wanted == 1 and 'c' .. number or string.format('c%.0f*%.0f', number, wanted))
      if type(logged) == 'table' then
        local is_foreign = string.sub(logged.err, 1, 9) == 'WRONGTYPE'
        return is_foreign and redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is not a zset') or logged
      end
    end
    redis.call('SET', KEYS[2], cmsgpack.pack(state), 'PX',
      math.max(2 * longest, state[4] + longest - now) + 1000)
    return reply
  end
end

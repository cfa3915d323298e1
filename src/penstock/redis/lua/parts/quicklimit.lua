-- The commonest question, answered in the fewest steps: some permits of a limit that counts exactly,
-- at once or not at all, while nobody waits, nothing leaves a window and all of them have room.
-- Whatever is otherwise is left to what follows.

if algorithm == 'exact' and state[1] == 'exact' and state[7] == 0 and state[5] <= now
    and ARGV[2] == ARGV[3] and ARGV[2] ~= '0' and ARGV[5] == '0' and ARGV[6] == '' and ARGV[9] == ''
    and not set_back and (#ARGV - first) / 3 == (#state - HEAD) / FIELDS then
  local wanted, longest = tonumber(ARGV[2]), state[#state - FIELDS + 1]
  local is_plain, at = state[6] >= now + longest, HEAD
  for place = first + 1, #ARGV, 3 do
    local used = state[at + 2]
    if state[at + 1] ~= tonumber(ARGV[place + 1]) or state[at + 5] > 0
        or used + wanted > tonumber(ARGV[place])
        or used > 0 and now - state[at + 1] >= state[at + 4] then
      is_plain = false
      break
    end
    at = at + FIELDS
  end
  if is_plain then
    local number = state[3] + 1
    state[3] = number
    if now > state[4] then state[4] = now end
    redis.call('ZADD', KEYS[1], now,
      wanted == 1 and 'c' .. number or string.format('c%.0f*%.0f', number, wanted))
    local reply = {wanted, 0, now, string.format('%.0f', state[8] + number), 0, 0}
    at = HEAD
    for place = first + 1, #ARGV, 3 do
      local ms, used = state[at + 1], state[at + 2]
      if used == 0 or now < state[at + 4] then state[at + 4] = now end
      state[at + 2] = used + wanted
      if now - ms > state[at + 3] then state[at + 3] = now - ms end
      reply[#reply + 1] = ARGV[place] - used - wanted
      reply[#reply + 1] = state[4] + ms - now
      at = at + FIELDS
    end
    redis.call('SET', KEYS[2], cmsgpack.pack(state), 'PX',
      math.max(2 * longest, state[4] + longest - now) + 1000)
    return reply
  end
end

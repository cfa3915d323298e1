-- acquire_limit: take permits, if every window of the limit has room for them.
--
-- Flags: allow-oom  work that drains a full server may be behind a limit
--
-- KEYS[1]  ZSET    log of admitted calls, of the exact algorithm
-- KEYS[2]  STRING  the limit's state
-- KEYS[3]  ZSET    tickets of callers that wait
-- KEYS[4]  HASH    what they want
-- ARGV[1]  str     'exact', 'compact' or 'gcra'
-- ARGV[2]  int     permits wanted; 0 to look only
-- ARGV[3]  int     fewest permits that do
-- ARGV[4]  num     largest part of what is left, 1 for all
-- ARGV[5]  int     ms for which they may be used; 0 for at once
-- ARGV[6]  str     ticket with which to wait if there are none, '' for a caller that does not
-- ARGV[7]  int     priority
-- ARGV[8]  int     ms after which the ticket of a silent caller is void
-- ARGV[9]  str     id of permits taken before that are given back, '' for none
-- ARGV[10] int     how many those were
-- ARGV[11] int     how many of them were used
-- ARGV[12] int     the server's ms that was logged for them
-- ARGV[13..] int   buckets of a window, then for each window its limit, its ms and its burst
--
-- Returns  list  permits granted; ms to wait, -1 if there will never be enough; the server's ms that
--                was logged; id; why not: 0 '', 1 the limit, 2 others wait, 3 a penalty; how many
--                wait before; then for each window what is left and ms until it is all free

-- Include: time
local algorithm, first = ARGV[1], 13
-- Include: limitstored
-- Include: quicklimit
-- Include: limitstate
local wanted, fewest, hold = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local ticket, priority = ARGV[6], tonumber(ARGV[7])
if ARGV[9] ~= '' then
  change(ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), now)
end

local before, ahead, line = 0, 0, {}
if state[7] > 0 or ticket ~= '' then
-- Include: limitline
  before, ahead = line.before(ticket, priority)
end

local room, most = math.huge, math.huge  -- room for us: what is left behind those before
for place = 1, #windows do
  local window = windows[place]
  window.left = algo.room(window) - window.extra
  if window.left - before < room then room = window.left - before end
  most = math.min(most, algorithm == 'gcra' and window.burst or window.limit)
end
-- Whoever asks for so long takes the period for a longer one, from before an edit.
local at = now + hold
if hold > 0 and algo.reaches and not algo.reaches(at) then room = 0 end
local grant, wait, reason = 0, 0, 0
if state[5] > now then
  wait, reason = state[5] - now, 3
elseif wanted > 0 and room >= fewest then
  grant = math.min(wanted, room, math.max(fewest, math.floor(room * ARGV[4])))
elseif wanted > 0 then
  reason = room + before >= fewest and 2 or 1
end

if grant > 0 then
  state[3] = state[3] + 1
  algo.take(grant, at)
  if at > state[4] then state[4] = at end
  if ticket ~= '' then line.leave(ticket) end
elseif wanted > 0 then
  if fewest > most then
    wait = -1
  else
    for _, window in ipairs(windows) do
      local need = fewest + before - window.left
      if need > 0 then
        local free = algo.wait(window, need)
        if window.extra > 0 and window.extra_until - now < free then
          -- What the provider counted leaves earlier: less of our own has to.
          local rest = need - window.extra
          free = math.max(window.extra_until - now, rest > 0 and algo.wait(window, rest) or 0)
        end
        -- Behind many who wait nobody can tell.
        wait = math.max(wait, free < math.huge and free or window.ms)
      end
    end
    if wait < 1 then wait = 1 end
  end
  if ticket ~= '' and wait >= 0 then line.stand(ticket, priority, fewest, tonumber(ARGV[8])) end
end
if not (is_new and wanted == 0) then save() end

local reply = {grant, math.ceil(wait), at, string.format('%.0f', state[8] + state[3]), reason, ahead}
for place = 1, #windows do
  local window = windows[place]
  local reset = algo.reset(window)
  if window.extra > 0 then reset = math.max(reset, window.extra_until - now) end
  reply[5 + 2 * place], reply[6 + 2 * place] = algo.room(window) - window.extra, math.ceil(reset)
end
return reply

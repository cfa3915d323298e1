-- Those who wait for a limit: for each process and priority one ticket, of its foremost callers. The
-- order is by priority, then by the time at which the first of these callers came.
--
-- A ticket holds whole numbers: group, what it wants, what all callers of its process want, how many
-- they are, the ms at which the last of them came, when it was renewed, within how many ms it asks
-- again, and after how many it is void.
local PRIORITY_STEP = 4e12  -- more than any time
-- A process that does not ask when it is to ask is passed over; so long after that.
local LATE_MS = 100
-- The longest times that settings allow, and then some.
local LONGEST_PAUSE_MS, LONGEST_TICKET_MS = 600000, 1200000
local CHUNK, MOST_READ, MOST_DEAD = 32, 128, 512
local TICKET = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

local base = -priority * PRIORITY_STEP
local came = group and now + time[2] % 1000 / 1000 - group[2]
local score = group and base + came or base + PRIORITY_STEP
if group then
  -- The message took its time each time; the shortest is the nearest to the truth.
  local known = tonumber(redis.call('ZSCORE', KEYS[3], ticket) or nil)
  local stored = redis.call('HGET', KEYS[4], ticket)
  if known and stored and string.match(stored, '^%d+') == string.format('%.0f', group[1]) then
    score = math.min(score, known)
  end
end

-- What is kept for a ticket before ours, nil if it is void; and the ms until it is passed over.
local function kept_for(stored, its_score)
  local _, want, all, _, last, renewed, pause, void = string.match(stored or '', TICKET)
  local since = renewed and now - renewed
  if not since or since < 0 or since > math.min(void, LONGEST_TICKET_MS) then return nil end
  local spare = math.min(pause, LONGEST_PAUSE_MS) + LATE_MS - since
  if spare < 0 then return 0 end
  -- Callers that came before our first go before it, whether they are among the foremost or not.
  local is_all = not group or its_score < base or tonumber(last) <= came
  return math.min(is_all and all or want, 1e12), spare + 1
end

-- What those before us want together, how many tickets they are, and the ms until the last of them is
-- passed over unless it asks. Void tickets leave. Of a long line that leaves us nothing anyway, the
-- rest is taken to want as much as its beginning.
function line.before(left)
  local late = 0
  if state[7] == 0 then return 0, 0, late end
  local upto, total, ahead, read, dead = '(' .. string.format('%.3f', score), 0, 0, 0, 0
  local has_more = true
  while has_more and read < MOST_READ and dead < MOST_DEAD and (read == 0 or total <= left) do
    local found = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', upto, 'WITHSCORES', 'LIMIT', read,
      CHUNK)
    local names, void = {}, {}
    for place = 1, #found, 2 do names[#names + 1] = found[place] end
    has_more = #names == CHUNK
    local stored = names[1] and redis.call('HMGET', KEYS[4], unpack(names)) or {}
    for place, name in ipairs(names) do
      local kept, spare = 0, nil
      if name ~= ticket then kept, spare = kept_for(stored[place], tonumber(found[2 * place])) end
      if kept then
        read = read + 1
        if kept > 0 then total, ahead, late = total + kept, ahead + 1, spare end
      else
        void[#void + 1] = name
      end
    end
    if void[1] then
      dead = dead + #void
      redis.call('ZREM', KEYS[3], unpack(void))
      redis.call('HDEL', KEYS[4], unpack(void))
    end
  end
  if has_more then
    local rest = (redis.call('ZCOUNT', KEYS[3], '-inf', upto) - read) / (read + dead)
    total, ahead = total + rest * total, ahead + rest * ahead
  elseif ahead == 0 and redis.call('EXISTS', KEYS[3]) == 0 then
    state[7] = 0
  end
  return total, ahead, late
end

-- Waits on for so many ms, after `served` of the group were granted `grant`.
function line.stand(served, grant, pause)
  local want = -grant
  for _, cost in ipairs(costs) do want = want + cost end
  redis.call('ZADD', KEYS[3], string.format('%.3f', score), ticket)
  redis.call('HSET', KEYS[4], ticket, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    group[1], want, group[5] - grant, group[4] - served, math.max(0, now - group[3]), now,
    math.min(pause, group[6]), group[7]))
  redis.call('PEXPIRE', KEYS[3], 2 * group[7] + 1000)
  redis.call('PEXPIRE', KEYS[4], 2 * group[7] + 1000)
  state[7] = 1
end

function line.leave()
  if state[7] == 0 then return end
  redis.call('ZREM', KEYS[3], ticket)
  redis.call('HDEL', KEYS[4], ticket)
  if redis.call('EXISTS', KEYS[3]) == 0 then state[7] = 0 end
end

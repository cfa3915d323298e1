-- trim_letters: drop the oldest dead letters, those beyond a number or an age.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  STREAM  the topic's dead letters
-- KEYS[2]  HASH    from group, partition and message id to the id of the dead letter
-- KEYS[3]  STREAM  what people did to the topic
-- ARGV[1]  int     letters to keep, -1 for any number
-- ARGV[2]  int     ms for which letters are kept, -1 for ever
-- ARGV[3]  int     most letters to drop in this call
-- ARGV[4]  str     who, '' for the topic's own retention
-- ARGV[5]  str     what is done
--
-- Returns  int  how many were dropped: fewer where they are large, 0 if none is left to drop

local function place(fields)
  local known = {}
  for i = 1, #fields, 2 do known[fields[i]] = fields[i + 1] end
  return (known['group'] or '') .. '/' .. (known['partitionId'] or '') .. '/'
    .. (known['originalMessageId'] or '')
end

local excess, oldest = 0, -1
if ARGV[1] ~= '-1' then excess = redis.call('XLEN', KEYS[1]) - ARGV[1] end
if ARGV[2] ~= '-1' then
  local time = redis.call('TIME')
  oldest = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[2]
end
local dropped, bytes, step, MOST_BYTES = 0, 0, 4, 1048576

-- Drops a letter; false if it stays.
local function drop(id, fields)
  if dropped >= excess and tonumber(string.match(id, '^%d+')) > oldest then return false end
  local field = place(fields)
  if redis.call('HGET', KEYS[2], field) == id then redis.call('HDEL', KEYS[2], field) end
  redis.call('XDEL', KEYS[1], id)
  for _, part in ipairs(fields) do bytes = bytes + #part end
  dropped = dropped + 1
  return true
end

local goes_on = true
while goes_on and bytes < MOST_BYTES and dropped < tonumber(ARGV[3]) do
  local some = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(step, ARGV[3] - dropped))
  goes_on = #some == math.min(step, ARGV[3] - dropped)
  for _, letter in ipairs(some) do goes_on = drop(letter[1], letter[2]) and goes_on end
  step = math.max(1, math.min(100, math.floor((MOST_BYTES - bytes) / (bytes / math.max(1, dropped) + 1))))
end
if dropped > 0 and ARGV[4] ~= '' then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*',
    'who', ARGV[4], 'what', ARGV[5], 'count', dropped, 'detail', '')
end
return dropped

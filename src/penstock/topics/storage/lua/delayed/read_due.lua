-- read_due: what decides where delayed messages belong whose time has come, or will soon.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  ZSET    ids of messages not yet due
-- KEYS[3]  HASH    messages not yet due
-- KEYS[4]  HASH    the partition's counters; `life` is that of the topic
-- ARGV[1]  int     most messages to read
-- ARGV[2]  int     ms ahead of now
--
-- Returns  list  ms until the next is due that is not yet (-1: none is waiting, or no topic); the life
--                of the topic, '' if it is not known; then for each message: id, ms at which it is
--                due, ms until then (0: it is due), key (nil without one), headers as JSON ('' if
--                they do not name a partition), name of its large body ('' without one), 1 if the
--                entry names its partition, else 0

if redis.call('EXISTS', KEYS[1]) == 0 then return {-1, ''} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local until_ms = string.format('%.0f', now + ARGV[2])
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', until_ms, 'WITHSCORES',
  'LIMIT', 0, ARGV[1])
local answer = {-1, redis.call('HGET', KEYS[4], 'life') or ''}
for i = 1, #found, 2 do
  local row = {found[i], found[i + 1], math.max(0, math.ceil(found[i + 1] - now)), false, '', '', 0}
  local fine, parts = pcall(cmsgpack.unpack, redis.call('HGET', KEYS[3], found[i]) or '')
  if fine and type(parts) == 'table' then
    if type(parts[1]) == 'string' then row[6] = parts[1] end
    for place = 2, #parts - 1, 2 do
      local name, value = parts[place], parts[place + 1]
      if type(value) == 'string' then
        if name == 'key' then row[4] = value end
        if name == 'partitionId' then row[7] = 1 end
        if name == 'headers' and string.find(value, 'x-force-partition-id', 1, true) then
          row[5] = value
        end
      end
    end
  end
  answer[#answer + 1] = row
end
local next = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', now), '+inf',
  'WITHSCORES', 'LIMIT', 0, 1)
if next[2] then answer[1] = math.max(1, math.ceil(next[2] - now)) end
return answer

-- save_checkpoint: store the position at which a run continues.
--
-- Flags: allow-oom  work that is done is noted on a full server, too
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     the cursor, as JSON
-- ARGV[3]  str     the watermark, as JSON; '' to leave it
-- ARGV[4]  int     1 to let the watermark go back
-- ARGV[5]  str     version that the run must have, '' for any
-- ARGV[6]  int     about so many events are kept
-- ARGV[7]  int     bytes above which an event does not repeat the cursor
--
-- Returns  list  1 done, 0 the run's version is another or it has ended and nothing was written,
--                -1 no such run, -2 the watermark cannot be compared with the one there; then the
--                run's version and its status

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
local status, version = redis.call('HGET', KEYS[1], 'status'), number_in('version')
if not status then return {-1, 0, ''} end
local earlier = answered(ARGV[1])
if earlier then return {1, tonumber(earlier), status} end
if FINAL[status] or (ARGV[5] ~= '' and ARGV[5] ~= string.format('%d', version)) then
  return {0, version, status}
end

-- Not with '<': texts would then be compared as people of the server's country sort them.
local function is_before(one, other)
  if type(one) == 'number' then return one < other end
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local mark, there = ARGV[3], redis.call('HGET', KEYS[1], 'watermark')
if mark ~= '' and there and ARGV[4] ~= '1' then
  local known, old = pcall(cjson.decode, there)
  local new = cjson.decode(mark)
  if not known or type(old) ~= type(new) then return {-2, version, status} end
  if is_before(new, old) then mark = '' end
end
local next_version = version + 1
redis.call('HSET', KEYS[1], 'checkpoint', ARGV[2], 'version', next_version, 'updated_ms', now)
if mark ~= '' then redis.call('HSET', KEYS[1], 'watermark', mark) end
local cursor = string.len(ARGV[2]) <= tonumber(ARGV[7]) and ',"cursor":' .. ARGV[2] or ''
local at = redis.call('HGET', KEYS[1], 'watermark')
tell(ARGV[6], 'checkpoint',
  '{"version":' .. next_version .. cursor .. (at and ',"watermark":' .. at or '') .. '}')
remember(ARGV[1], next_version)
return {1, next_version, status}

-- change_run: take a run to another status, if it has the one the caller thinks, or note facts.
--
-- Flags: allow-oom  runs end on a full server, too
--
-- KEYS[1]  HASH    the run's record
-- KEYS[2]  STREAM  its events
-- KEYS[3]  HASH    its feed
-- KEYS[4]  SET     ids of what was processed
-- KEYS[5]  ZSET    ids of what failed by the time of the next attempt
-- KEYS[6]  HASH    what is known of failures
-- KEYS[7]  HASH    starts of tasks
-- ARGV[1]  str     token of this call
-- ARGV[2]  str     status to take it to; '' to note facts alone
-- ARGV[3]  str     statuses it may have, each between commas; '' for all from which that is legal
-- ARGV[4]  str     version it must have, '' for any
-- ARGV[5]  int     1 to reopen it: a final status is left in no other way
-- ARGV[6]  int     ms for which a final run is kept
-- ARGV[7]  int     about so many events are kept
-- ARGV[8..]  str   names and values of facts
--
-- Returns  list  1 done, 0 its status or version is another and nothing was written, -1 no such
--                run; then its version and its status

redis.call('HDEL', KEYS[1], '')
-- Include: time
-- Include: runs
local LEGAL = {
  created = {running = 1, completed = 1, failed = 1, cancelled = 1},
  running = {paused = 1, completed = 1, failed = 1, cancelled = 1},
  paused = {running = 1, completed = 1, failed = 1, cancelled = 1}
}
local status, version, to = redis.call('HGET', KEYS[1], 'status'), number_in('version'), ARGV[2]
if not status then return {-1, 0, ''} end
local earlier = answered(ARGV[1])
if earlier then return {1, tonumber(earlier), to == '' and status or to} end
local fits = ARGV[3] == '' or string.find(ARGV[3], ',' .. status .. ',', 1, true)
if ARGV[4] ~= '' and ARGV[4] ~= string.format('%d', version) then fits = false end
if ARGV[5] == '1' then
  fits = fits and FINAL[status]
elseif to ~= '' then
  fits = fits and LEGAL[status] and LEGAL[status][to]
end
if not fits then return {0, version, status} end

local next_version = version + 1
redis.call('HSET', KEYS[1], 'version', next_version, 'updated_ms', now, unpack(ARGV, 8))
local said = {version = next_version, facts = #ARGV > 7 and {} or nil}
for i = 8, #ARGV, 2 do said.facts[ARGV[i]] = ARGV[i + 1] end
if to == '' then
  tell(ARGV[7], 'facts', cjson.encode(said))
else
  said.from, said.status = status, to
  redis.call('HSET', KEYS[1], 'status', to)
  if FINAL[to] then
    redis.call('HSET', KEYS[1], 'ended_ms', now)
    said.processed, said.failures = redis.call('SCARD', KEYS[4]), redis.call('ZCARD', KEYS[5])
    tell(ARGV[7], 'finished', cjson.encode(said))
  else
    redis.call('HDEL', KEYS[1], 'ended_ms')
    tell(ARGV[7], 'status', cjson.encode(said))
  end
end
remember(ARGV[1], next_version)
see_to_end(ARGV[6])
return {1, next_version, to == '' and status or to}

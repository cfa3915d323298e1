-- open_claims: note that a worker is about to read claims of a dead one, and list them in pages.
--
-- A worker that dies meanwhile may have died of what it read: find_dead counts that.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH  the dead worker's claims
-- KEYS[2]  HASH  jobs that workers may have died of, and which worker reads or tries which
-- ARGV[1]  str   the worker that reads, '' for a caller that is not a worker
-- ARGV[2]  str   the dead worker
-- ARGV[3]  str   the claim that it reads, '' for all
-- ARGV[4]  int   ms for which that is remembered
-- ARGV[5]  str   where the last page of names ended, '0' to begin
--
-- Returns  list  how many workers died while they read it; the claim that the dead worker had on trial,
--                '' for none; then, of all, where the next page begins, '0' if there is none, and the
--                names of the claims; one may come twice

redis.call('HDEL', KEYS[2], '')
local what = ARGV[3] == '' and ARGV[2] or ARGV[2] .. '\n' .. ARGV[3]
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], what)
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
local deaths = tonumber(redis.call('HGET', KEYS[2], '!' .. what) or 0) or 0
local answer = {deaths, redis.call('HGET', KEYS[2], '?' .. ARGV[2]) or ''}
if ARGV[3] ~= '' then return answer end
local MOST, PAGE = 1000, 100
if ARGV[5] == '0' and redis.call('HLEN', KEYS[1]) <= MOST then
  answer[3] = '0'
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do answer[#answer + 1] = name end
else
  local cursor, found = unpack(redis.call('HSCAN', KEYS[1], ARGV[5], 'COUNT', PAGE))
  answer[3] = cursor
  for place = 1, #found, 2 do answer[#answer + 1] = found[place] end
end
return answer

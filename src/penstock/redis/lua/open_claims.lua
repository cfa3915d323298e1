-- open_claims: note that a worker is about to read claims of a dead one, and list them.
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
--
-- Returns  list  how many workers died while they read it; the claim that the dead worker had on trial,
--                '' for none; then, of all, the names of the claims

redis.call('HDEL', KEYS[2], '')
local what = ARGV[3] == '' and ARGV[2] or ARGV[2] .. '\n' .. ARGV[3]
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], what)
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
local answer = ARGV[3] == '' and redis.call('HKEYS', KEYS[1]) or {}
table.insert(answer, 1, redis.call('HGET', KEYS[2], '?' .. ARGV[2]) or '')
table.insert(answer, 1, tonumber(redis.call('HGET', KEYS[2], '!' .. what) or 0) or 0)
return answer

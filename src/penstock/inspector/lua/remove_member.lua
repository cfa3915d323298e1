-- remove_member: take an entry out of a registry that is sorted, unless it was changed meanwhile.
--
-- Flags: allow-oom  it makes room
--
-- KEYS[1]  ZSET  the registry
-- ARGV[1]  str   the entry
-- ARGV[2]  str   the score that is expected
--
-- Returns  int  1 removed, 0 it has another score or is not there

local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])

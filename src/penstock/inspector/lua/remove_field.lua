-- remove_field: take an entry out of a registry, unless it was changed meanwhile.
--
-- Flags: allow-oom  it makes room
--
-- KEYS[1]  HASH  the registry
-- ARGV[1]  str   the entry
-- ARGV[2]  str   what is expected there
--
-- Returns  int  1 removed, 0 there is something else or nothing

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])

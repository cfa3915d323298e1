-- declare_limit: record the setting of a limit, unless it was edited.
--
-- KEYS[1]  HASH  from a limit's name to how it is set
-- ARGV[1]  str   name
-- ARGV[2]  str   how the caller would have it, as JSON
--
-- Returns  str  how it is set

local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == ARGV[2] then return stored end
if stored then
  local fine, known = pcall(cjson.decode, stored)
  if fine and type(known) == 'table' and known.edited then return stored end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]

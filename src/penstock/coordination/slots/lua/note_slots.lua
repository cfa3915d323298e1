-- note_slots: note how many slots a name has by the code, or learn how many by an operator.
--
-- Flags: allow-oom  work that drains a full server needs its slots
--
-- KEYS[1]  HASH  from a name to how it is set, as JSON
-- ARGV[1]  str   name
-- ARGV[2]  str   how the code sets it
--
-- Returns  str  how it is set: as the operator did, else as the code does

local name, declared = ARGV[1], ARGV[2]
local found = redis.call('HGET', KEYS[1], name)
if found == declared then return found end
if found then
  local readable, settings = pcall(cjson.decode, found)
  if readable and type(settings) == 'table' and settings.edited then return found end
end
redis.call('HDEL', KEYS[1], '')  -- a write that needs no memory: the others may follow it
redis.call('HSET', KEYS[1], name, declared)
return declared

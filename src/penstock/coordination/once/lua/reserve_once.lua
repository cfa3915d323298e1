-- reserve_once: reserve a key, unless it is marked or reserved by another caller.
--
-- Unchecked: both keys are read before anything is written
--
-- KEYS[1]  STRING  the mark
-- KEYS[2]  STRING  who is at work on it; behind a `!`, who has done it a moment ago
-- ARGV[1]  str     token of this reservation; the same again is the same reservation
-- ARGV[2]  str     value of the mark
-- ARGV[3]  int     ms for which the reservation holds
--
-- Returns  list  1 reserved, 0 done or reserved by another; value of the mark

local holder, value = redis.pcall('GET', KEYS[2]), redis.pcall('GET', KEYS[1])
if type(holder) == 'table' or type(value) == 'table' then
-- Include: types
  return fault_in('STRING', KEYS[1]) or fault_in('STRING', KEYS[2])
end
if holder ~= ARGV[1] then
  if value then return {0, value} end
  -- The mark was deleted, but the work continues.
  if holder and string.sub(holder, 1, 1) ~= '!' then return {0, ''} end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[3])
return {1, ARGV[2]}

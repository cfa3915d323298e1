-- commit_once: say that what is to happen once has happened.
--
-- Flags: allow-oom  what was done on a full server must not be done again
-- Unchecked: both keys are read before anything is written
--
-- KEYS[1]  STRING  the mark
-- KEYS[2]  STRING  who is at work on it; behind a `!`, who has done it a moment ago
-- ARGV[1]  str     token of the reservation
-- ARGV[2]  str     value of the mark
-- ARGV[3]  int     ms for which the mark lasts
-- ARGV[4]  int     ms for which the repeat of this call is known as such
-- ARGV[5]  int     1 to set the mark regardless of the holder
--
-- Returns  int  1 marked, 0 the reservation has passed to another; nothing written

local holder, length = redis.pcall('GET', KEYS[2]), redis.pcall('STRLEN', KEYS[1])
if type(holder) == 'table' or type(length) == 'table' then
-- Include: types
  return fault_in('STRING', KEYS[1]) or fault_in('STRING', KEYS[2])
end
local done = '!' .. ARGV[1]
if holder == done then return 1 end
if holder ~= ARGV[1] and ARGV[5] ~= '1' then
  -- It has expired. If no other caller took it, the work was done by this one.
  if holder and string.sub(holder, 1, 1) ~= '!' then return 0 end
  if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
end
-- First what needs no memory: before version 7 a full server takes further writes only then.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('SET', KEYS[2], done, 'PX', ARGV[4])
return 1

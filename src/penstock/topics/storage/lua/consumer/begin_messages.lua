-- begin_messages: count an attempt at messages before it is made.
--
-- The count is raised, not set: an earlier owner that lives may be lowering it (see uncharge). A
-- repeat of a call whose answer was lost finds it raised, and leaves it.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: every message passes here; keys are checked where they are read or written
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- KEYS[3]  ZSET    the group's retries
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  str     consumer under which messages are pending
-- ARGV[4]  int     deliveries that were not attempts: 1 if every start is counted here, else 0
-- ARGV[5..]  str   id, attempts that the caller knows of; the next id, …
--
-- Returns  list  for each id the number of the attempt, 0 if the message is not pending any more
--          -1    the partition is not the caller's any more; nothing written

-- Include: types
local epoch = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(epoch) == 'table' then return fault_in('HASH', KEYS[1]) end
if epoch ~= ARGV[2] then return -1 end
local others, numbers = tonumber(ARGV[4]), {}
for i = 5, #ARGV, 2 do
  local found = redis.pcall('XPENDING', KEYS[2], ARGV[1], ARGV[i], ARGV[i], 1)
  -- Whether there is such a stream and group shows with the first.
  if found.err then return fault_in('STREAM', KEYS[2]) or found end
  -- It needs no memory, so it is the first write; and whether the key is right shows with it.
  local noted = redis.pcall('ZREM', KEYS[3], ARGV[i])
  if type(noted) == 'table' then return fault_in('ZSET', KEYS[3]) or noted end
  local pending, number = found[1], 0
  if pending then
    number = math.max(0, pending[4] - others)
    if number <= tonumber(ARGV[i + 1]) then number = number + 1 end
    -- What was trimmed from the stream is not claimed.
    local claimed = redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[3], 0, ARGV[i],
      'RETRYCOUNT', number + others, 'JUSTID')
    if not claimed[1] then number = 0 end
  end
  numbers[#numbers + 1] = number
end
return numbers

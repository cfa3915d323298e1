-- unpark_messages: deliver messages again that were parked, as if for the first time.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    epochs by group
-- KEYS[2]  STREAM  the partition's messages
-- ARGV[1]  str     group
-- ARGV[2]  int     the owner's epoch
-- ARGV[3]  str     consumer under which messages are pending
-- ARGV[4..]  str   ids
--
-- Returns  list  for each that is pending and in the stream: id, fields
--          -1    the partition is not the caller's any more; nothing written

if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return -1 end
local claim = {'XCLAIM', KEYS[2], ARGV[1], ARGV[3], 0, unpack(ARGV, 4)}
for _, option in ipairs({'RETRYCOUNT', 1}) do claim[#claim + 1] = option end
local claimed = redis.pcall(unpack(claim))
if claimed.err then return claimed end  -- the group is gone
local found = {}
-- Before version 7, a message that was trimmed away has an empty place here.
for place = 1, #ARGV - 3 do
  if claimed[place] then found[#found + 1] = claimed[place] end
end
return found

-- uncharge_messages: take back the attempts of a live process that has lost the partition.
--
-- An attempt that was begun and has no outcome is charged as if its process had died. A process that
-- is alive takes it back without a check of the owner: counts are lowered by one, so that an attempt
-- which the new owner has counted meanwhile stays counted.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STREAM  the partition's messages
-- ARGV[1]  str     group
-- ARGV[2]  str     consumer under which messages are pending
-- ARGV[3..]  str   ids, each with one attempt to be taken back
--
-- Returns  int  how many of them were pending

local lowered = 0
for i = 3, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[4] > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i],
      'RETRYCOUNT', pending[4] - 1, 'JUSTID')
    lowered = lowered + 1
  end
end
return lowered

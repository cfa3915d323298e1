-- release: give a partition up, and with it what was fetched but not begun.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  STRING  the lease
-- KEYS[2]  HASH    epochs by group
-- KEYS[3]  STREAM  the owner's fence
-- KEYS[4]  STREAM  the partition's messages
-- ARGV[1]  str     group
-- ARGV[2]  str     the owner
-- ARGV[3]  int     the owner's epoch
-- ARGV[4]  str     consumer under which messages are pending
-- ARGV[5..]  str   ids fetched but not begun: no attempt is charged for them
--
-- Returns  1  given up
--          0  it was not the caller's any more; nothing written

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3] then return 0 end
for i = 5, #ARGV do
  redis.call('XCLAIM', KEYS[4], ARGV[1], ARGV[4], 0, ARGV[i], 'RETRYCOUNT', 0, 'JUSTID')
end
if redis.call('GET', KEYS[1]) == ARGV[2] then redis.call('DEL', KEYS[1]) end
redis.call('DEL', KEYS[3])
return 1

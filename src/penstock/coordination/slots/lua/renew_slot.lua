-- renew_slot: hold a slot for longer, unless its lease has ended.
--
-- Flags: allow-oom  a full server must not take the slots away from those who drain it
--
-- KEYS[1]  ZSET  holders by the end of their lease
-- ARGV[1]  str   the holder
-- ARGV[2]  int   ms from now
--
-- Returns   1  held
--           0  its lease has ended, even if the slot is still free; nothing was written

-- Include: time
-- Include: expiry
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends or tonumber(ends) <= now then return 0 end
redis.call('ZREM', KEYS[1], '')  -- a write that needs no memory: the others may follow it
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
last_for(KEYS[1], tonumber(ARGV[2]))
return 1

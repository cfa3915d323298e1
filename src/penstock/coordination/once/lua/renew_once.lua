-- renew_once: hold a reservation for longer.
--
-- Flags: allow-oom  who is at work on a full server must not lose what it holds
--
-- KEYS[1]  STRING  the mark
-- KEYS[2]  STRING  who is at work on it
-- ARGV[1]  str     token of the reservation
-- ARGV[2]  int     ms for which it holds from now on
--
-- Returns  int  1 renewed, 0 it is not held any more

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('PEXPIRE', KEYS[2], ARGV[2])

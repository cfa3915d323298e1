-- renew_flight: let the others wait longer for a value that is being made, or no longer.
--
-- Flags: allow-oom  it needs no memory
--
-- KEYS[1]  STRING  who makes it
-- ARGV[1]  str     token of the caller
-- ARGV[2]  int     ms for which they wait from now on; 0 to let another make it
--
-- Returns  int  1 renewed or ended, 0 the value is not this caller's to make any more

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])

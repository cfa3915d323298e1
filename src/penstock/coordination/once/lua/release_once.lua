-- release_once: give back a reservation whose work was not done.
--
-- Flags: allow-oom  it needs no memory
--
-- KEYS[1]  STRING  the mark
-- KEYS[2]  STRING  who is at work on it
-- ARGV[1]  str     token of the reservation
--
-- Returns  int  1 released, 0 it was not held any more

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1

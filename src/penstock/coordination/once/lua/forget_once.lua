-- forget_once: let what has happened once happen again.
--
-- Flags: allow-oom  it needs no memory
--
-- KEYS[1]  STRING  the mark
-- KEYS[2]  STRING  who is at work on it, or has done it a moment ago
--
-- Returns  int  1 there was a mark, 0 there was none

redis.call('DEL', KEYS[2])
return redis.call('DEL', KEYS[1])

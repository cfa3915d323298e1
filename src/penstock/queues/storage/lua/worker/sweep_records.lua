-- sweep_records: forget jobs that have been in a final state for as long as their records are kept.
--
-- A bounded number per call: a caller that gets another number than 0 may call again.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  ZSET  jobs that are done, by the ms at which they ended
-- KEYS[2]  ZSET  jobs that failed
-- KEYS[3]  ZSET  jobs that were cancelled
-- KEYS[4]  ZSET  jobs that expired
-- ARGV[1]  int   ms for which a final record is kept
--
-- Returns  int  how many were forgotten

redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: sweep
local before = now - ARGV[1]
return sweep_upto(KEYS[1], before) + sweep_upto(KEYS[2], before) + sweep_upto(KEYS[3], before)
  + sweep_upto(KEYS[4], before)

-- remove_queue_letters: take dead letters away, and note who did.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  LIST    the letters
-- KEYS[2]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     more about it
-- ARGV[3]  int     how many of the oldest to take away; 0 for those that follow
-- ARGV[4]  int     how far from the left all of these were seen
-- ARGV[5..]  str   letters, byte by byte
--
-- Returns  int  how many there were

-- Include: audit
-- Include: pull
redis.call('XLEN', KEYS[2])
local removed, oldest = 0, tonumber(ARGV[3])
if oldest > 0 then
  removed = math.min(oldest, redis.call('LLEN', KEYS[1]))
  redis.call('LTRIM', KEYS[1], oldest, -1)
end
for place = 5, #ARGV do removed = removed + pull(KEYS[1], ARGV[place], ARGV[4], 1) end
if removed > 0 then note_act(KEYS[2], ARGV[1], 'purge', removed, ARGV[2]) end
return removed

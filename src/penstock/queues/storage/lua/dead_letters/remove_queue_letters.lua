-- remove_queue_letters: take dead letters away, and note who did.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  LIST    the letters
-- KEYS[2]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     more about it
-- ARGV[3]  int     how many of the oldest to take away; 0 for those that follow
-- ARGV[4..]  str   for each its letter, byte by byte; how many were before that
--
-- Returns  int  how many there were

-- Include: time
-- Include: audit
-- Include: pull
-- Servers before 7 let a script go on at maxmemory once it has written.
redis.call('LTRIM', KEYS[1], 0, -1)
local oldest, struck = math.min(ARGV[3], redis.call('LLEN', KEYS[1])), 0
local last = 0
if oldest > 0 then redis.call('LTRIM', KEYS[1], oldest, -1) end
for place = 4, #ARGV, 2 do
  local index = locate(KEYS[1], ARGV[place], ARGV[place + 1], 1)
  if index then
    strike(KEYS[1], index)
    last = index
    struck = struck + 1
  end
end
remove_struck(KEYS[1], struck, last)
if oldest + struck > 0 then note_act(KEYS[2], ARGV[1], 'purge', oldest + struck, ARGV[2]) end
return oldest + struck

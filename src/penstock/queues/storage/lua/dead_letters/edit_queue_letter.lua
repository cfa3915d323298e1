-- edit_queue_letter: put another text in the place of a dead letter, and note who did.
--
-- KEYS[1]  LIST    the letters
-- KEYS[2]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     more about it
-- ARGV[3]  str     the letter, byte by byte
-- ARGV[4]  int     how many were before it when it was seen
-- ARGV[5]  str     the new letter
--
-- Returns  1  it has been replaced
--          0  there is no such letter (any more)

-- Include: time
-- Include: audit
-- Include: pull
local index = locate(KEYS[1], ARGV[3], ARGV[4], 1)
if not index then return 0 end
note_act(KEYS[2], ARGV[1], 'edit', 1, ARGV[2])
redis.call('LSET', KEYS[1], index, ARGV[5])
return 1

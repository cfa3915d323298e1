-- note_queue_act: write to the audit log of a queue.
--
-- Flags: allow-oom  a full server is relieved by people, too
--
-- KEYS[1]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     what
-- ARGV[3]  int     to how many
-- ARGV[4]  str     more about it
--
-- Returns  1  noted

-- Servers before 7 let a script go on at maxmemory once it has written.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', 10000)
-- Include: audit
note_act(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1

-- drop_legacy: remove a stream that was moved into a topic, if nothing has come in meanwhile.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  STREAM  the stream from before the topic
--
-- Returns  1  it is gone
--          0  there are messages in it

if redis.call('XLEN', KEYS[1]) > 0 then return 0 end
redis.call('DEL', KEYS[1])
return 1

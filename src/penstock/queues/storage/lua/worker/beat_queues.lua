-- beat_queues: give signs of life to several queues of one slot; for each as beat_queue does.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: one key of another type must not keep the signs from the other queues
--
-- KEYS[1]  ZSET  live workers of the first queue
-- ARGV[1]  int   ms of silence after which a worker is dead
-- ARGV[2..]  str  for each queue the beginning of the names of its own keys; the worker; the longest
--                 time in ms for which the worker itself was paused since its last sign
--
-- Returns  list  for each what beat_queue returns, or an error

redis.pcall('ZREM', KEYS[1], '')
-- Include: types
-- Include: time
-- Include: silence
local answer = {}
for place = 2, #ARGV, 3 do
  local own, worker, paused_ms = unpack(ARGV, place, place + 2)
  answer[#answer + 1] = note_sign(own .. 'workers', own .. 'state', worker, now,
    tonumber(ARGV[1]), tonumber(paused_ms))
end
return answer

-- stop_tending: give up the leases of queues' tender and wake a worker of each, whose process takes over.
--
-- All leases end before a process is woken: the first process that looks gets every queue that it serves,
-- so that the looks at them stay one command.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: one key of another type must not keep the leases of the other queues
--
-- KEYS[1]  HASH  the first queue's state; the others are named after what follows
-- ARGV[1]  str   the process that tended them
-- ARGV[2..]  str  for each queue the beginning of the names of its own keys
--
-- Returns  int  how many were given up; the others are tended by another process

redis.pcall('HDEL', KEYS[1], '')
-- Include: wakeup
local given_up = {}
for place = 2, #ARGV do
  local state = ARGV[place] .. 'state'
  if redis.pcall('HGET', state, 'tender') == ARGV[1] then
    redis.call('HDEL', state, 'tender', 'tended_until')
    given_up[#given_up + 1] = ARGV[place]
  end
end
for _, own in ipairs(given_up) do wake(own .. 'ring', 1) end
return #given_up

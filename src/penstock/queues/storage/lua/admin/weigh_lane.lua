-- weigh_lane: say how many jobs a fair lane may have in one turn.
--
-- KEYS[1]  HASH    weights of fair lanes
-- KEYS[2]  STREAM  what people did to the queue
-- ARGV[1]  str     who
-- ARGV[2]  str     the lane
-- ARGV[3]  int     its weight, 1 for as much as any other
--
-- Returns  1  noted

-- Include: audit
note_act(KEYS[2], ARGV[1], 'weigh', 1, 'lane ' .. ARGV[2] .. ': ' .. ARGV[3])
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], ARGV[2])
else
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
return 1

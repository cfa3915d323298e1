-- declare_queue: store options of a queue that the caller gives, and return the push side.
--
-- KEYS[1]  HASH  the queue's state
-- ARGV[1]  str   'right' or 'left', the side where jobs are pushed; '' if the caller does not care
-- ARGV[2]  str   weights of high, normal and low as '6,3,1', 'strict', or '' to leave it
-- ARGV[3]  str   most jobs claimed at once over all workers, '0' for any number, '' to leave it
-- ARGV[4]  str   the same for each fair lane
--
-- Returns  str  the side that holds; if it is not the caller's, nothing was written

local side = redis.call('HGET', KEYS[1], 'side')
if ARGV[1] ~= '' and side and side ~= ARGV[1] then return side end
if ARGV[1] ~= '' and not side then
  side = ARGV[1]
  redis.call('HSET', KEYS[1], 'side', side)
end
for place, name in ipairs({'levels', 'limit', 'lane_limit'}) do
  local wanted = ({ARGV[2], ARGV[3], ARGV[4]})[place]
  if wanted == '0' or wanted == 'strict' then
    redis.call('HDEL', KEYS[1], name)
  elseif wanted ~= '' then
    redis.call('HSET', KEYS[1], name, wanted)
  end
end
return side or 'right'

-- count_after: count the messages after an id, up to a number, where the server keeps no count.
--
-- KEYS[1]  STREAM  the partition's messages
-- ARGV[1]  str     id
-- ARGV[2]  int     where to stop counting
--
-- Returns  int  how many; if it is the number where to stop, there may be more

local PAGE = 1000
local most = tonumber(ARGV[2])
local counted, from = 0, '(' .. ARGV[1]
while counted < most do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', math.min(PAGE, most - counted))
  counted = counted + #page
  if #page < PAGE then break end
  from = '(' .. page[#page][1]
end
return counted

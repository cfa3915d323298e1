-- find_letters: look for the letters of some jobs among those on a list, without sending the others.
--
-- The caller says how many to look at, by what earlier calls told of their size: others wait while
-- a script runs.
--
-- KEYS[1]  LIST  the letters
-- ARGV[1]  int   place of the first letter to look at, 0 for the oldest
-- ARGV[2]  int   how many to look at
-- ARGV[3..]  str  ids of jobs, as they stand in their letters
--
-- Returns  list  how many there were to look at; their bytes; then for each that holds one of the
--                ids, or whose job is compressed and cannot be read here, its place and the letter

local first = tonumber(ARGV[1])
local page = redis.call('LRANGE', KEYS[1], first, first + ARGV[2] - 1)
local answer, bytes = {#page, 0}, 0
for index = 1, #page do
  local letter = page[index]
  local holds = string.find(letter, '"Z:', 1, true)
  for place = 3, #ARGV do holds = holds or string.find(letter, ARGV[place], 1, true) end
  bytes = bytes + #letter
  if holds then
    answer[#answer + 1] = first + index - 1
    answer[#answer + 1] = letter
  end
end
answer[2] = bytes
return answer

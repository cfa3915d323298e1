-- find_letters: look for the letters of some jobs among those on a list, without sending the others.
--
-- It reads them from the last to the first, and stops after enough bytes: other clients wait
-- while a script runs.
--
-- KEYS[1]  LIST  the letters
-- ARGV[1]  int   index of the first letter to examine, 0 for the oldest
-- ARGV[2]  int   maximum number of letters to examine
-- ARGV[3..]  str  ids of jobs as written in their letters
--
-- Returns  list  number of letters examined; then for each that holds one of the ids, or whose job is
--                compressed and cannot be read here, its place and the letter

local first, upto = tonumber(ARGV[1]), ARGV[1] + ARGV[2] - 1
local answer, bytes, step, largest = {0}, 0, 4, 1
-- Each id costs a search of every byte.
local most_bytes = 524288 / (#ARGV - 1)
while upto >= first and bytes < most_bytes do
  local from = math.max(first, upto - step + 1)
  local page = redis.call('LRANGE', KEYS[1], from, upto)
  for index = #page, 1, -1 do
    local letter = page[index]
    local holds = string.find(letter, '"Z:', 1, true)
    for place = 3, #ARGV do holds = holds or string.find(letter, ARGV[place], 1, true) end
    bytes, largest = bytes + #letter, math.max(largest, #letter)
    if holds then
      answer[#answer + 1] = from + index - 1
      answer[#answer + 1] = letter
    end
  end
  upto = from - 1
  step = math.max(1, math.min(200, math.floor((most_bytes - bytes) / largest)))
end
answer[1] = ARGV[1] + ARGV[2] - 1 - upto
return answer

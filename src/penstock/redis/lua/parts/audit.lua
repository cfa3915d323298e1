-- Numbers that are to be changed must be some before anything else is written.
local function check_numbers(hash, ...)
  for _, number in ipairs(redis.call('HMGET', hash, ...)) do
    if number and not string.match(number, '^-?%d+$') then
      error('ERR a count of the queue is not a number: ' .. number)
    end
  end
end

local function note_act(audit, who, what, count, detail)
  redis.call('XADD', audit, 'MAXLEN', '~', 10000, '*',
    'who', who, 'what', what, 'count', count, 'detail', detail)
end

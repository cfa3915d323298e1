-- The error to answer with if what is to be counted on is not a number.
local function fault_in_number(hash, field)
  local number = redis.call('HGET', hash, field)
  if number and not string.match(number, '^-?%d+$') then
    return redis.error_reply('ERR a count of the queue is not a number: ' .. number)
  end
end

local function note_act(audit, who, what, count, detail)
  redis.call('XADD', audit, 'MAXLEN', '~', 10000, '*',
    'who', who, 'what', what, 'count', count, 'detail', detail)
end

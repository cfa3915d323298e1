-- Keys of another type than they should have are found here, before anything is written.

-- The error to answer with for a key of another type; nil for one that is right or not there.
local function fault_in(kind, key)
  -- By the cheapest read of each type. Not by a table: it would be made at every call of a script.
  local answer = redis.pcall(kind == 'HASH' and 'HLEN' or kind == 'ZSET' and 'ZCARD'
    or kind == 'LIST' and 'LLEN' or kind == 'STRING' and 'STRLEN' or kind == 'SET' and 'SCARD'
    or 'XLEN', key)
  if type(answer) ~= 'table' then return nil end
  if string.sub(answer.err, 1, 9) ~= 'WRONGTYPE' then return answer end
  return redis.error_reply('WRONGTYPE ' .. key .. ' is not a ' .. string.lower(kind))
end

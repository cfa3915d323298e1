-- Keys of another type than they should have are found here, before anything is written.

local READS = {STRING = 'STRLEN', LIST = 'LLEN', SET = 'SCARD', ZSET = 'ZCARD', HASH = 'HLEN',
  STREAM = 'XLEN'}

-- The error to answer with for a key of another type; nil for one that is right or not there.
local function fault_in(kind, key)
  local answer = redis.pcall(READS[kind], key)
  if type(answer) ~= 'table' then return nil end
  if string.sub(answer.err, 1, 9) ~= 'WRONGTYPE' then return answer end
  return redis.error_reply('WRONGTYPE ' .. key .. ' is not a ' .. string.lower(kind))
end

-- submit_job: add one job with what a plain push cannot: a record, a unique key, or a time.
--
-- Unchecked: every job passes here, and two keys may be any; what it reads first, or writes, is looked at
--
-- KEYS[1]  LIST    the queue's plain list; the list of a lane is named after it
-- KEYS[2]  HASH    the queue's state
-- KEYS[3]  HASH    counters
-- KEYS[4]  LIST    the overflow
-- KEYS[5]  LIST    the ring of fair lanes
-- KEYS[6]  ZSET    parked lanes
-- KEYS[7]  ZSET    ids of jobs not yet due
-- KEYS[8]  HASH    jobs not yet due
-- KEYS[9]  HASH    the job's record
-- KEYS[10] STRING  the unique key
-- KEYS[11] STRING  who has just set it, if it says something of its own; else the same key
-- ARGV[1]  str     lane, '' for the plain list
-- ARGV[2]  str     the queue's name
-- ARGV[3]  str     'right' or 'left'
-- ARGV[4]  str     policy for a full list
-- ARGV[5]  int     most jobs in the list, 0 for any number; the same for jobs not yet due
-- ARGV[6]  int     most bytes in the queue's lists, 0 for any number
-- ARGV[7]  int     most jobs in the overflow
-- ARGV[8]  str     job id
-- ARGV[9]  str     the job
-- ARGV[10] str     '' to queue it at once, else ms to wait, or the server's ms at which it is due,
--                  negated
-- ARGV[11] int     ms for which the unique key holds, 0 for a job without one
-- ARGV[12] str     beginning of the names of records
-- ARGV[13] str     beginning of the names of the indexes by state
-- ARGV[14] int     ms for which a final record is kept
-- ARGV[15] str     beginning of the names of unique keys
-- ARGV[16] str     '' if the unique key is to say the job's id; else `=` or, to set it even if it is
--                  taken, `!`; a token of 32 characters, by which a repeat is known; what it says
-- ARGV[17] int     ms for which a repeat is known by its token
-- ARGV[18..] str   names and values of the record; none for a job without one
--
-- Returns  list  1 added, 0 the list is full, 2 the unique key or the id is taken; length of the
--                list; jobs moved aside; jobs dropped; id of the job that is there now, '' if not
--                known; ms until due; those moved or dropped that are compressed, see
--                `note_losses`; what a taken unique key says, if that is not the id

-- Include: types
-- Include: time
-- Include: records
-- Include: lanes
local lane, id, index, has_record = ARGV[1], ARGV[8], ARGV[13], #ARGV >= 18
local token
local list, most = list_of(KEYS[1], lane), tonumber(ARGV[5])
local fault = fault_in('LIST', list) or fault_in('HASH', KEYS[2]) or fault_in('HASH', KEYS[3])
  or lane ~= '' and (fault_in('LIST', KEYS[5]) or fault_in('ZSET', KEYS[6]))
  or ARGV[10] ~= '' and (fault_in('ZSET', KEYS[7]) or fault_in('HASH', KEYS[8]))
  or has_record and fault_in('ZSET', index .. (ARGV[10] ~= '' and 'submitted' or 'queued'))
  or ARGV[11] ~= '0' and (fault_in('STRING', KEYS[10]) or fault_in('STRING', KEYS[11]))
if fault then return fault end
if ARGV[11] ~= '0' then
  local holder = redis.call('GET', KEYS[10])
  if ARGV[16] == '' then
    if holder then return {2, redis.call('LLEN', list), 0, 0, holder, 0} end
  else
    token = '!' .. string.sub(ARGV[16], 2, 33)
    local by = redis.call('GET', KEYS[11])
    if by == token then
      return {2, redis.call('LLEN', list), 0, 0, id, 0, {}, holder or ''}
    end
    -- Without a `!` it is one who is at work on it, even if somebody deleted the key.
    local taken = holder or (by and string.sub(by, 1, 1) ~= '!')
    if taken and string.sub(ARGV[16], 1, 1) == '=' then
      return {2, redis.call('LLEN', list), 0, 0, '', 0, {}, holder or ''}
    end
  end
end
if has_record then
  local fields = redis.pcall('HLEN', KEYS[9])
  if type(fields) == 'table' then return fault_in('HASH', KEYS[9]) end
  if fields > 0 then return {2, redis.call('LLEN', list), 0, 0, id, 0} end
end

local function refused(length)
  if ARGV[4] ~= 'block' then redis.call('HINCRBY', KEYS[3], 'rejected', 1) end
  return {0, length, 0, 0, '', 0}
end

local wait, moved, dropped, packed = -1, 0, 0, {}
if ARGV[10] ~= '' then
  wait = tonumber(ARGV[10])
  if wait < 0 then wait = -wait - now end
  if wait < 0 then wait = 0 end
  local waiting = redis.call('ZCARD', KEYS[7])
  -- One of the same id would be overwritten.
  if redis.call('HEXISTS', KEYS[8], id) == 1 then return {2, waiting, 0, 0, id, 0} end
  if most > 0 and waiting >= most then return refused(waiting) end
elseif ARGV[6] ~= '0' or (most > 0 and redis.call('LLEN', list) >= most) then
-- Include: losses
-- Include: overflow
  local room
  room, moved, dropped, fault = make_room(list, KEYS[4], KEYS[3], KEYS[2], index, ARGV[2], ARGV[3],
    ARGV[4], most, tonumber(ARGV[6]), tonumber(ARGV[7]), 1, #ARGV[9], iso(now), now, lane,
    function(item)
      if is_packed(packed, item) then return end
      note_loss(ARGV[12], index, item, now, ARGV[14], ARGV[15])
    end)
  if fault then return fault end
  if not room then return refused(redis.call('LLEN', list)) end
end
-- The list comes last: what is wrong with another key is found before the job is there.
redis.call('HINCRBY', KEYS[3], 'added', 1)
if lane ~= '' then redis.call('HSETNX', KEYS[2], 'lanes', 1) end
if has_record then
  local state = wait >= 0 and 'submitted' or 'queued'
  redis.call('ZADD', index .. state, now, id)
  redis.call('HSET', KEYS[9], 'job_id', id, 'status', state, 'submitted_at', iso(now),
    unpack(ARGV, 18))
end
-- Also for a job that waits: it counts when it is due.
if ARGV[6] ~= '0' then redis.call('HSETNX', KEYS[2], 'bytes', 0) end
if token then
  redis.call('SET', KEYS[10], string.sub(ARGV[16], 34), 'PX', ARGV[11])
  redis.call('SET', KEYS[11], token, 'PX', ARGV[17])
elseif ARGV[11] ~= '0' then
  redis.call('SET', KEYS[10], id, 'PX', ARGV[11])
end
if wait >= 0 then
  redis.call('ZADD', KEYS[7], now + wait, id)
  redis.call('HSET', KEYS[8], id, 'b' .. lane .. '\n' .. ARGV[9])
  return {1, redis.call('ZCARD', KEYS[7]), moved, dropped, id, wait}
end
put(KEYS[1], KEYS[5], KEYS[6], KEYS[2], ARGV[3], lane, ARGV[9], false)
packed.bytes = nil
return {1, redis.call('LLEN', list), moved, dropped, id, 0, packed}

-- submit_jobs: add jobs with what a plain push cannot: a record, a unique key, or a time.
--
-- Each is decided by itself and in its turn, as if it came alone; what all of them have in common is
-- given and written once.
--
-- Unchecked: every job passes here, and unique keys may be any; the body checks what it reads or
-- writes
--
-- KEYS[1]  LIST  the queue's plain list; the list of a lane is named after it
-- KEYS[2]  HASH  the queue's state
-- KEYS[3]  HASH  counters
-- KEYS[4]  LIST  the overflow
-- KEYS[5]  LIST  the ring of fair lanes
-- KEYS[6]  ZSET  parked lanes
-- KEYS[7]  ZSET  ids of jobs not yet due
-- KEYS[8]  HASH  jobs not yet due
-- KEYS[9]  ZSET  live workers of the queue
-- KEYS[10] ZSET  dead workers of the queue whose claims are to be returned
-- KEYS[11] ZSET  those of the jobs not yet due that were set aside, over the limits of their tasks
-- ARGV[1]  str   lane, '' for the plain list
-- ARGV[2]  str   the queue's name
-- ARGV[3]  str   'right' or 'left'
-- ARGV[4]  str   policy for a full list, see `push_jobs`
-- ARGV[5]  int   most jobs in the list, 0 for any number; the same for jobs not yet due
-- ARGV[6]  int   most bytes in the queue's lists, 0 for any number
-- ARGV[7]  int   most jobs in the overflow
-- ARGV[8]  str   beginning of the names of records
-- ARGV[9]  str   beginning of the names of the indexes by state
-- ARGV[10] str   beginning of the names of unique keys
-- ARGV[11] str   beginning of the names of claims by worker
-- ARGV[12] int   ms for which a final record is kept
-- ARGV[13] int   most fair lanes with jobs, 0 for any number
-- ARGV[14] int   most jobs not yet due, 0 for any number
-- ARGV[15] str   as a JSON list, names and values that all records have; '' for jobs without records
-- ARGV[16..] str  for each job its id as records are named, a newline, and the job. If it has
--                 options, these follow the id, each after a blank: `-` to queue it at once, else ms
--                 to wait, or the server's ms at which it is due, negated; its unique key, `-` for
--                 none; ms for which that holds, 0 until the job ends; the key that remembers who has
--                 just set it, `-` if its value is the job's id; ms for which that remembers; and how many
--                 bytes before the job are the value of the unique key (`=` or, to set it even if it
--                 is taken, `!`; a token of 32 characters, by which a repeat is known; the value)
--                 and, after those, of names and values for its own record, as a JSON list
--
-- Returns  list  length of the list; jobs not yet due; jobs moved aside or dropped that are
--                compressed, see `note_losses`; then for each job 1 added; 0 there is no room; 4 too
--                many fair lanes have jobs, and this would be one more; 5 as many jobs are not yet due
--                as ARGV[14] allows; {1, jobs moved aside, jobs dropped} added where room was made; {2, id, its value}
--                if the unique key or the id is taken, by a job of this id ('' if not known); or the
--                error that keeps this one job from being added

-- Include: types
-- Include: time
-- Include: calendar
-- Include: lanes
local lane, policy, most, most_bytes = ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local records, index, shared = ARGV[8], ARGV[9], ARGV[15] ~= '' and cjson.decode(ARGV[15])
local list = list_of(KEYS[1], lane)
local length, known = redis.pcall('LLEN', list), redis.pcall('HEXISTS', KEYS[2], 'bytes')
local fault = type(length) == 'table' and fault_in('LIST', list)
  or type(known) == 'table' and fault_in('HASH', KEYS[2])
  or lane ~= '' and (fault_in('LIST', KEYS[5]) or fault_in('ZSET', KEYS[6]))
  or shared and fault_in('ZSET', index .. 'queued')
if fault then return fault end
local counts_bytes = known == 1 or most_bytes > 0
local is_new_lane, may_open = not PRIORITIES[lane] and length == 0, nil

local function read_job(argument)
  local ends = string.find(argument, '\n', 1, true)
  local head = string.sub(argument, 1, ends - 1)
  if not string.find(head, ' ', 1, true) then
    return {id = head, item = string.sub(argument, ends + 1)}
  end
  local id, wait, unique, unique_ms, by, remember_ms, said, own = string.match(head,
    '^(%S+) (%S+) (%S+) (%d+) (%S+) (%d+) (%d+) (%d+)$')
  said, own = ends + tonumber(said), ends + tonumber(said) + tonumber(own)
  return {id = id, wait = wait ~= '-' and tonumber(wait) or nil, unique = unique ~= '-' and unique,
    unique_ms = unique_ms, by = by ~= '-' and by, remember_ms = remember_ms,
    says = string.sub(argument, ends + 1, said), own = string.sub(argument, said + 1, own),
    item = string.sub(argument, own + 1)}
end

-- What was decided and is not yet written: jobs for the list, jobs for later, and what they take.
local queued, later, ids, uniques, at = {}, {}, {}, {}, nil

local function write_records(jobs, state)
  local scores = {}
  at = at or iso(now)
  for _, job in ipairs(jobs) do
    local record = records .. job.id
    redis.call('HSET', record, 'job_id', job.id, 'status', state, 'submitted_at', at, unpack(shared))
    if job.own and job.own ~= '' then redis.call('HSET', record, unpack(cjson.decode(job.own))) end
    scores[#scores + 1], scores[#scores + 2] = now, job.id
  end
  redis.call('ZADD', index .. state, unpack(scores))
end

local function take_unique(job)
  if job.by then
    redis.call('SET', job.unique, string.sub(job.says, 34), 'PX', job.unique_ms)
    redis.call('SET', job.by, '!' .. string.sub(job.says, 2, 33), 'PX', job.remember_ms)
  elseif job.unique_ms == '0' then
    redis.call('SET', job.unique, job.id)
  else
    redis.call('SET', job.unique, job.id, 'PX', job.unique_ms)
  end
end

-- The lists come last: what is wrong with another key is found before a job is there.
local function write()
  if fault or #queued + #later == 0 then return end
  local counted = redis.pcall('HINCRBY', KEYS[3], 'added', #queued + #later)
  if type(counted) == 'table' then
    fault = fault_in('HASH', KEYS[3]) or counted
    return
  end
  if lane ~= '' then redis.call('HSETNX', KEYS[2], 'lanes', 1) end
  if shared and queued[1] then write_records(queued, 'queued') end
  if shared and later[1] then write_records(later, 'submitted') end
  for _, job in pairs(uniques) do take_unique(job) end
  if most_bytes > 0 and known == 0 then redis.call('HSETNX', KEYS[2], 'bytes', 0) end
  for _, job in ipairs(later) do
    redis.call('ZADD', KEYS[7], now + job.wait, job.id)
    redis.call('HSET', KEYS[8], job.id, 'b' .. lane .. '\n' .. job.item)
  end
  if queued[1] then
    local items, bytes = {}, 0
    for place, job in ipairs(queued) do
      items[place], bytes = job.item, bytes + #job.item
    end
    if counts_bytes then redis.pcall('HINCRBY', KEYS[2], 'bytes', bytes) end
    enlist(KEYS[5], KEYS[6], lane, is_new_lane)
    is_new_lane = false
    length = redis.call(ARGV[3] == 'left' and 'LPUSH' or 'RPUSH', list, unpack(items))
    wake(KEYS[5], #queued > 1 and 2 or 1)
  end
  queued, later, ids, uniques = {}, {}, {}, {}
end

-- The answer for a job whose unique key is taken; nil if it is free.
local function unique_taken(job)
-- Include: records
-- Include: uniques
  if not job.by then
    if uniques[job.unique] then return {2, uniques[job.unique].id} end
    local holder = holder_of(job.unique, records, {waiting = KEYS[1], ring = KEYS[5],
      parked = KEYS[6], delayed = KEYS[7], workers = KEYS[9], dead_workers = KEYS[10],
      claims = ARGV[11]}, lane)
    if type(holder) == 'table' then return fault_in('STRING', job.unique) end
    return holder and {2, holder}
  end
  write()  -- another of these jobs may have set it
  local wrong = fault_in('STRING', job.unique) or fault_in('STRING', job.by)
  if wrong then return wrong end
  local holder, by = redis.call('GET', job.unique), redis.call('GET', job.by)
  if by == '!' .. string.sub(job.says, 2, 33) then return {2, job.id, holder or ''} end
  -- Without a `!` it is one who is at work on it, even if the key was deleted.
  local taken = holder or (by and string.sub(by, 1, 1) ~= '!')
  if taken and string.sub(job.says, 1, 1) == '=' then return {2, '', holder or ''} end
end

-- The same for its id.
local function id_taken(job)
  if shared or job.wait then
    if ids[job.id] then return {2, job.id} end
  end
  if shared then
    local fields = redis.pcall('HLEN', records .. job.id)
    if type(fields) == 'table' then return fault_in('HASH', records .. job.id) end
    if fields > 0 then return {2, job.id} end
  end
  if job.wait then
    local wrong = fault_in('ZSET', KEYS[7]) or fault_in('HASH', KEYS[8])
      or shared and fault_in('ZSET', index .. 'submitted')
    if wrong then return wrong end
    -- One of the same id would be overwritten.
    if redis.call('HEXISTS', KEYS[8], job.id) == 1 then return {2, job.id} end
  end
end

-- The answer for a job that is to be due later; those that were set aside are not counted.
local function admit_later()
  local count, most_later = redis.call('ZCARD', KEYS[7]) + #later, tonumber(ARGV[14])
  local function is_over(limit) return limit > 0 and count >= limit end
  if not is_over(most) and not is_over(most_later) then return 1 end
  local aside = redis.pcall('ZCOUNT', KEYS[11], '(' .. now, '+inf')
  if type(aside) == 'number' then count = count - aside end
  return is_over(most) and 0 or is_over(most_later) and 5 or 1
end

local packed, refused = {}, 0

-- The answer for a job that wants to be in the list.
local function admit(job)
  if is_new_lane and may_open == nil then
    may_open = not has_all_lanes(KEYS[1], KEYS[5], tonumber(ARGV[13]))
  end
  if may_open == false then return 4 end
  if most_bytes == 0 and (most == 0 or length + #queued < most) then return 1 end
-- Include: records
-- Include: losses
-- Include: overflow
  write()
  local wrong, room, moved, dropped = fault_in('HASH', KEYS[3])
  if wrong then return wrong end
  room, moved, dropped, wrong = make_room(list, KEYS[4], KEYS[3], KEYS[2], index, ARGV[2],
    ARGV[3], policy, most, most_bytes, tonumber(ARGV[7]), 1, #job.item, iso(now), now, lane,
    function(item) note_loss(records, index, item, now, ARGV[12], ARGV[10]) end, packed)
  if wrong then return wrong end
  if not room then return 0 end
  length = redis.call('LLEN', list)
  return moved + dropped == 0 and 1 or {1, moved, dropped}
end

local function is_added(said)
  return said == 1 or (type(said) == 'table' and said[1] == 1)
end

local answer = {0, 0, packed}
for place = 16, #ARGV do
  local job = read_job(ARGV[place])
  local said = job.unique and unique_taken(job) or id_taken(job)
  if not said and job.wait then
    job.wait = math.max(0, job.wait < 0 and -job.wait - now or job.wait)
    said = admit_later()
    if said == 1 then later[#later + 1] = job end
    answer[2] = true
  elseif not said then
    said = admit(job)
    if is_added(said) then queued[#queued + 1] = job end
  end
  if said == 0 or said == 4 or said == 5 then
    refused = refused + 1
  elseif is_added(said) then
    ids[job.id] = true
    if job.unique then uniques[job.unique] = job end
  end
  answer[#answer + 1] = said
end
write()
if fault then return fault end
if refused > 0 and policy ~= 'block' then redis.pcall('HINCRBY', KEYS[3], 'rejected', refused) end
answer[1] = length
if answer[2] == true then answer[2] = redis.call('ZCARD', KEYS[7]) end
return answer

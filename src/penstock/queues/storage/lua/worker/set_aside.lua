-- set_aside: let jobs in hand wait until their task may have a place for them, not charged.
--
-- They come back to the front of their lanes, in the order in which they were set aside. Moments are
-- rounded up, so that workers that wait for them wake up seldom.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  ZSET  live workers of the queue
-- KEYS[2]  HASH  the worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  ZSET  ids of jobs not yet due
-- KEYS[7]  HASH  jobs not yet due
-- KEYS[8]  HASH  counters
-- KEYS[9]  ZSET  those of the jobs not yet due that were set aside
-- ARGV[1]  str   worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms that the first waits
-- ARGV[6]  str   ms by which each one waits longer than the one before
-- ARGV[7..]  str  for each job, 500 at most, its claim; its id; '1' if it has a record
--
-- Returns  list  how many workers are alive; then for each job 1, or 0 if its record says that it
--                has ended (cancelled, perhaps): it stays in hand
--          int   -1  the worker was given up as dead; nothing was done

redis.call('HDEL', KEYS[2], '')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return -1 end
-- Include: time
-- Include: records
-- Include: lanes
local fault = fault_in_indexes(ARGV[3])
if fault then return fault end
local ROUND_MS, LONGEST_MS = 50, 300000
local claims, ids = {}, {}
for place = 7, #ARGV, 3 do
  claims[#claims + 1], ids[#ids + 1] = ARGV[place], ARGV[place + 1]
end
local items = redis.call('HMGET', KEYS[2], unpack(claims))
local scores = redis.call('ZMSCORE', KEYS[6], unpack(ids))
-- Those of one moment come back in the order of this count: thousandths are as exact as a score is.
local before = tonumber(redis.call('HGET', KEYS[8], 'set_aside')) or 0
local answer, waits, bodies, moved, seen = {redis.call('ZCARD', KEYS[1])}, {}, {}, {}, {}
for place, claim in ipairs(claims) do
  local id, item, status = ids[place], items[place], nil
  if ARGV[6 + 3 * place] ~= '' then status = status_in(ARGV[2] .. id) end
  local has_ended = item and status and not LEGAL[status]
  answer[#answer + 1] = has_ended and 0 or 1
  if item and not has_ended then
    local member = id
    if scores[place] or seen[id] then  -- other programs may give two jobs one id
      member = id .. ' ' .. ARGV[1] .. ' ' .. claim
    end
    seen[id] = true
    local due = math.ceil((now + ARGV[5] + #moved * ARGV[6]) / ROUND_MS) * ROUND_MS
    waits[#waits + 1] = string.format('%.3f', due + (before + #moved) % 1000 / 1000)
    waits[#waits + 1] = member
    bodies[#bodies + 1], bodies[#bodies + 2] = member, 'f' .. lane_in(claim) .. '\n' .. item
    moved[#moved + 1] = claim
    if status then turn(ARGV[2] .. id, ARGV[3], id, 'queued', now) end
  end
end
if moved[1] then
  redis.call('ZADD', KEYS[6], unpack(waits))
  redis.call('HSET', KEYS[7], unpack(bodies))
  -- Those that are back leave this index by their time: whatever brings them back need not know it.
  local back = redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now, 'LIMIT', 0, 1000)
  if back[1] then redis.call('ZREM', KEYS[9], unpack(back)) end
  redis.call('ZADD', KEYS[9], unpack(waits))
  redis.call('PEXPIRE', KEYS[9], LONGEST_MS)
  redis.call('HDEL', KEYS[2], unpack(moved))
  for _, claim in ipairs(moved) do free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim) end
  redis.pcall('HINCRBY', KEYS[8], 'set_aside', #moved)
end
return answer

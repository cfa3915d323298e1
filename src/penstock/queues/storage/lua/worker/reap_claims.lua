-- reap_claims: return jobs of a dead worker to the front of their lanes, or bury them.
--
-- A job whose lane, or the dead letters if it is to be buried, is not a list stays in the claims.
--
-- Flags: allow-oom  a full server must drain
-- Unchecked: one list of another type must not keep the jobs of the others
--
-- KEYS[1]  ZSET  dead workers of the queue
-- KEYS[2]  HASH  the dead worker's claims
-- KEYS[3]  LIST  the queue's plain list; those of its lanes are named after it
-- KEYS[4]  LIST  the ring of fair lanes
-- KEYS[5]  ZSET  parked lanes
-- KEYS[6]  HASH  the queue's state
-- KEYS[7]  LIST  the dead letters
-- KEYS[8]  HASH  counters
-- KEYS[9]  HASH  jobs that workers may have died of, and which worker reads or tries which
-- ARGV[1]  str   the dead worker
-- ARGV[2]  str   beginning of the names of records
-- ARGV[3]  str   beginning of the names of the indexes by state
-- ARGV[4]  str   beginning of the names of the sets of running jobs by lane
-- ARGV[5]  int   ms for which a final record is kept
-- ARGV[6]  int   ms for which suspects are remembered
-- ARGV[7]  str   beginning of the names of unique keys
-- ARGV[8..]  str  for each job its claim; its id, '' for none; its unique key, '' for none; 'back',
--                 'suspect' to queue it as one that is taken alone, 'bury', or 'unread' to bury it as
--                 it stands in the claims, under the id that it has there; the job as it is to be
--                 queued, or the letter, or what follows the job in it; as a JSON list names and
--                 values for its record, '' for none
--
-- Returns  int  how many jobs were moved, an error if a list is not one and none was; the worker is
--               forgotten when it has none left

-- Include: types
local fault = fault_in('ZSET', KEYS[1]) or fault_in('HASH', KEYS[2]) or fault_in('LIST', KEYS[4])
  or fault_in('ZSET', KEYS[5]) or fault_in('HASH', KEYS[6]) or fault_in('HASH', KEYS[8])
  or fault_in('HASH', KEYS[9])
if fault then return fault end
redis.call('ZREM', KEYS[1], '')
-- Include: time
-- Include: records
-- Include: lanes
-- Include: suspects
-- Include: jobnames
-- Larger jobs are buried unread without a look at their ids: others wait while a script runs.
local MOST_READ_BYTES = 1048576
local stuck = fault_in_indexes(ARGV[3])
if stuck then return stuck end
local side = redis.call('HGET', KEYS[6], 'side') or 'right'
local moved = 0
for place = #ARGV - 5, 8, -6 do
  local claim, id, unique, verdict, item, said = unpack(ARGV, place, place + 5)
  local dies = verdict == 'bury' or verdict == 'unread'
  local stays = fault_in('LIST', dies and KEYS[7] or list_of(KEYS[3], lane_in(claim)))
  stuck = stuck or stays
  if not stays and redis.call('HEXISTS', KEYS[2], claim) == 1 then
    if verdict == 'unread' then
      local job, key = redis.call('HGET', KEYS[2], claim), nil
      item = '{"original_job":' .. cjson.encode(job) .. item
      if #job <= MOST_READ_BYTES then id, key = names_in(job) end
      id, unique = id or '', key and ARGV[7] .. key or ''
    end
    local record, fields = ARGV[2] .. id, said ~= '' and cjson.decode(said) or {}
    if dies then
      redis.call('RPUSH', KEYS[7], item)
      redis.call('HDEL', KEYS[2], claim)
      close(record, ARGV[3], id, 'failed', now, ARGV[5], fields)
      forget(unique, id)
      redis.pcall('SREM', cancelled_beside(ARGV[3]), id)
    else
      put(KEYS[3], KEYS[4], KEYS[5], KEYS[6], side, lane_in(claim), item, true)
      redis.call('HDEL', KEYS[2], claim)
      if verdict == 'suspect' then
        redis.call('HSET', KEYS[9], suspect_name(item), 1)
        redis.call('PEXPIRE', KEYS[9], ARGV[6])
      end
      return_to_queue(record, ARGV[3], id, now)
      if fields[1] and status_in(record) == 'queued' then redis.call('HSET', record, unpack(fields)) end
    end
    free(ARGV[4], KEYS[4], KEYS[5], KEYS[3], ARGV[1], claim)
    redis.call('HDEL', KEYS[9], '!' .. ARGV[1] .. '\n' .. claim)
    redis.pcall('HINCRBY', KEYS[8], dies and 'dead' or 'reaped', 1)
    moved = moved + 1
  end
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[9], '!' .. ARGV[1], '?' .. ARGV[1])
end
if moved > 0 then wake(KEYS[4], math.min(moved, 2)) end
return moved == 0 and stuck or moved

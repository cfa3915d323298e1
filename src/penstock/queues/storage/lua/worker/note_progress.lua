-- note_progress: write into the record of a running job, if the worker still has it.
--
-- KEYS[1]  HASH  the worker's claims
-- KEYS[2]  HASH  the job's record
-- ARGV[1]  str   claim
-- ARGV[2..]  str  names and values
--
-- Returns   2  written; the job was asked to stop
--           1  written
--           0  the job is not in hand or has no record; nothing written

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HGET', KEYS[2], 'status') ~= 'processing' then return 0 end
if #ARGV > 1 then redis.call('HSET', KEYS[2], unpack(ARGV, 2)) end
return redis.call('HEXISTS', KEYS[2], 'cancel_asked') + 1

-- relist_lane: give a fair lane that has jobs its turns again, where it stands neither in the ring
-- nor among the parked ones: another program has pushed to its list or has removed the ring.
--
-- Flags: allow-oom  a full server must drain
--
-- KEYS[1]  HASH    the queue's state
-- KEYS[2]  LIST    the ring of fair lanes
-- KEYS[3]  ZSET    parked lanes
-- KEYS[4]  LIST    the queue's plain list; those of its lanes are named after it
-- ARGV[1]  str     the lane
-- ARGV[2]  int     1 if it was seen in the ring or among the parked ones: then it is only noted in the
--                  index and the state
--
-- Returns  1  it has its turns now
--          0  it had, or has no jobs

redis.call('HDEL', KEYS[1], '')
-- Include: lanes
local has_jobs = redis.call('TYPE', list_of(KEYS[4], ARGV[1])).ok == 'list'
index_lane(KEYS[2], ARGV[1], has_jobs)
if has_jobs or ARGV[2] == '1' then redis.call('HSETNX', KEYS[1], 'lanes', 1) end
if not has_jobs or ARGV[2] == '1' then return 0 end
if redis.call('LPOS', KEYS[2], ARGV[1]) then return 0 end
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return 0 end
enlist(KEYS[2], KEYS[3], ARGV[1], true)
wake(KEYS[2], 1)
return 1

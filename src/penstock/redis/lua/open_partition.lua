-- open_partition: make sure that a partition's stream is there, if only empty.
--
-- KEYS[1]  STREAM  the partition's messages
--
-- Returns  1  it was made
--          0  it was there

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('XGROUP', 'CREATE', KEYS[1], 'penstock', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[1], 'penstock')
return 1

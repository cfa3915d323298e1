-- probe: prove that the server runs scripts and takes writes at this moment.
--
-- KEYS[1]  STRING  the probe
-- ARGV[1]  str     token of this probe
-- ARGV[2]  int     ms after which the probe vanishes
--
-- Returns  int  the server's time in ms

redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)

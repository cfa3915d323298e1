-- Let a key that has a time to live last for at least so many ms more, and a little: entries in it
-- end by their own times, never by the key's.
local function last_for(key, ms)
  if redis.call('PTTL', key) < ms + 1000 then redis.call('PEXPIRE', key, ms + 1000) end
end

-- look_at_feed: read a feed's position and state.
--
-- KEYS[1]  STREAM  the events, with their numbers as ids
-- KEYS[2]  HASH    the feed's state
--
-- Returns  list  number of the latest event, 0 if there was none; number of the earliest one that is
--                kept, 0 if none is; number of the final one, or 0; the state, or nil; number of the
--                event that it came with, or 0; id and fields of the latest event, or nil

local known = redis.call('HMGET', KEYS[2], 'seq', 'final', 'state', 'state_seq')
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local function number_of(entry)
  return entry and tonumber(string.match(entry[1], '^%d+')) or 0
end
return {
  tonumber(known[1]) or number_of(last), number_of(first), tonumber(known[2]) or 0,
  known[3], tonumber(known[4]) or 0, last or false,
}

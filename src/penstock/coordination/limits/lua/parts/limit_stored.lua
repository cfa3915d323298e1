-- What is stored of a limit: a list, as MessagePack: algorithm, the latest `now`, number of the latest
-- permits, the latest time that was logged, the end of the penalty, when the log expires, whether
-- callers may wait, what to add to a number for an id;
-- then for each window its ms, what is used, edge and oldest (all of its own algorithm), what the
-- provider has counted besides and until when, its buckets ('' for none), and the number of the
-- latest permits that it knows nothing of.

local FROZEN_MS = 60000  -- a clock set back by less stands still; by more, times are reset
local HEAD, FIELDS = 8, 8
local UNREADABLE = ' cannot be read: reset the limit to remove it'
local AHEAD = 27  -- buckets for calls to come, of the compact algorithm

local stored = redis.pcall('GET', KEYS[2])
if type(stored) == 'table' then
  return redis.error_reply('WRONGTYPE ' .. KEYS[2] .. ' is not a string')
end
local is_new = not stored
-- Ids go on from the time, so that those of a state that was forgotten do not come again; its line
-- may still be there.
local is_read, state = true, nil
if stored then
  is_read, state = pcall(cmsgpack.unpack, stored)
else
  state = {algorithm, now, 0, 0, 0, 0, 1, now}
end
if not is_read or type(state) ~= 'table' or #state < HEAD or type(state[2]) ~= 'number' then
  return redis.error_reply('ERR ' .. KEYS[2] .. UNREADABLE)
end
local last = state[2]
local set_back = last - now > FROZEN_MS
if now < last and not set_back then now = last end
state[2] = now

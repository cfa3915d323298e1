-- What is stored of a limit: a list, as MessagePack: algorithm, the latest `now`, number of the latest
-- permits, the latest time that was logged, the end of the penalty, when the log expires, whether
-- callers may wait, what to add to a number for an id;
-- then for each window its ms, what is used, edge and oldest (all of its own algorithm), what the
-- provider has counted besides and until when, its buckets ('' for none), and the number of the
-- latest permits that it knows nothing of.

local FROZEN_MS = 60000  -- a clock set back by less stands still; by more, times are set anew
local HEAD, FIELDS = 8, 8

local stored = redis.call('GET', KEYS[2])
local is_new = not stored
-- Ids go on from the time, so that those of a state that was forgotten do not come again; its line
-- may still be there.
local state = stored and cmsgpack.unpack(stored) or {algorithm, now, 0, 0, 0, 0, 1, now}
local last = state[2]
local set_back = last - now > FROZEN_MS
if now < last and not set_back then now = last end
state[2] = now

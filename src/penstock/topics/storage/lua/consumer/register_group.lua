-- register_group: make sure that a group is known to a partition.
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    epochs by group
-- KEYS[3]  HASH    from group to the id up to which all is settled
-- ARGV[1]  str     group
-- ARGV[2]  str     id after which a new group reads: 0, $ or an id
--
-- Returns   1  it is new here
--           0  it was known
--           2  it was known, but the server had lost it; it continues where all was acknowledged
--          -1  there is no such partition

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local known = redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
for _, group in ipairs(groups) do
  if group[2] == ARGV[1] then
    if not known then redis.call('HSET', KEYS[2], ARGV[1], 0) end
    return 0
  end
end
local start = ARGV[2]
if known then
  start = redis.call('HGET', KEYS[3], ARGV[1]) or '0'
  -- What another program wrote there must not stop the group: rather all messages again.
  if not string.match(start, '^%d+%-%d+$') or #start > 30 then start = '0' end
end
local create = {'XGROUP', 'CREATE', KEYS[1], ARGV[1], start}
-- From here on the server counts what the group is given, so that losses show. Not before version 7.
local facts = {}
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
local added = facts['entries-added']
if added and (start == '0' or start == '$') then
  create[6] = 'ENTRIESREAD'
  create[7] = string.format('%.0f', start == '0' and added - facts['length'] or added)
end
local made = redis.pcall(unpack(create))
if made.err then return made end
redis.call('HSETNX', KEYS[2], ARGV[1], 0)
return known and 2 or 1

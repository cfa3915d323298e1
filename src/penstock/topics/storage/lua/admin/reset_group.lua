-- reset_group: let a group continue from another position; the owner loses the partition.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  STREAM  the partition's messages
-- KEYS[2]  HASH    epochs by group; `<group>:fence` is the number of a fence that is not the first
-- KEYS[3]  HASH    from group to the id up to which all is settled
-- KEYS[4]  STRING  the lease
-- KEYS[5]  ZSET    the group's retries
-- KEYS[6]  HASH    the group's failures
-- ARGV[1]  str     group
-- ARGV[2]  str     id after which it reads: an id, or $ for the end
-- ARGV[3]  str     what fences of this group begin with; a number completes the key
--
-- Returns   1  done
--           0  there is no such group here
--          -1  there is no such partition

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local epoch, number = unpack(redis.call('HMGET', KEYS[2], ARGV[1], ARGV[1] .. ':fence'))
local known = epoch
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if group[2] == ARGV[1] then known = true end
end
if not known then return 0 end

local start = ARGV[2]
if start == '$' then
  local facts = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #facts, 2 do
    if facts[i] == 'last-generated-id' then start = facts[i + 1] end
  end
end
if not string.match(start, '^%d+$') and not string.match(start, '^%d+%-%d+$') then
  return redis.error_reply('ERR no position in a stream: ' .. start)
end
-- Include: fences
tear_down_all(ARGV[3], ARGV[1], epoch or '0', number)
redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6])
-- What is pending goes with the old group.
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], start)
redis.call('HSET', KEYS[3], ARGV[1], start)
redis.call('HDEL', KEYS[2], ARGV[1] .. ':fence')
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', next_number(epoch or 0, number)))
return 1

-- remove_letters: take dead letters away, and note who did.
--
-- Flags: allow-oom  it frees memory
--
-- KEYS[1]  STREAM  the topic's dead letters
-- KEYS[2]  HASH    from group, partition and message id to the id of the dead letter
-- KEYS[3]  STREAM  what people did to the topic
-- ARGV[1]  str     who
-- ARGV[2]  str     what is done with them
-- ARGV[3]  str     more about it
-- ARGV[4..]  str   ids of dead letters
--
-- Returns  int  how many there were

local function place(fields)
  local known = {}
  for i = 1, #fields, 2 do known[fields[i]] = fields[i + 1] end
  return (known['group'] or '') .. '/' .. (known['partitionId'] or '') .. '/'
    .. (known['originalMessageId'] or '')
end

local removed = 0
for i = 4, #ARGV do
  local found = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if found then
    local field = place(found[2])
    if redis.call('HGET', KEYS[2], field) == ARGV[i] then redis.call('HDEL', KEYS[2], field) end
    redis.call('XDEL', KEYS[1], ARGV[i])
    removed = removed + 1
  end
end
if removed > 0 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*',
    'who', ARGV[1], 'what', ARGV[2], 'count', removed, 'detail', ARGV[3])
end
return removed

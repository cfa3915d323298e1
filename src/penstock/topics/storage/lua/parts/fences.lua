-- End a fence: reads that name it fail, those that wait on the server included. Before version 7 such
-- a read does not notice that a key is gone, but that its group is; and a full server takes further
-- writes after one that needs no memory.
local function tear_down(fence, group)
  if fault_in('STREAM', fence) then return end  -- not one of ours
  if redis.call('PEXPIRE', fence, 1000) == 1 then redis.call('XGROUP', 'DESTROY', fence, group) end
end

-- End every fence of an ownership: the first has the number of the epoch, `number` is that of a
-- renewed one or nil. Both may stand: an earlier version does not know renewed fences, and leaves
-- the number of another owner's as it finds it.
local function tear_down_all(fences, group, epoch, number)
  tear_down(fences .. epoch, group)
  if number then tear_down(fences .. number, group) end
end

-- The lowest number that was never that of a fence.
local function next_number(epoch, number)
  return math.max(epoch, tonumber(number) or 0) + 1
end

-- Whether a fence is that of an ownership that was not given up. The Java library makes none.
local function stands(fence)
  if redis.call('TYPE', fence).ok ~= 'stream' then return false end
  return #redis.call('XINFO', 'GROUPS', fence) > 0
end

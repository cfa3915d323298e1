-- End a fence: reads that name it fail, those that wait on the server included. Before version 7 such
-- a read does not notice that a key is gone, but that its group is; and a full server takes further
-- writes after one that needs no memory.
local function tear_down(fence, group)
  if fault_in('STREAM', fence) then return end  -- not one of ours
  if redis.call('PEXPIRE', fence, 1000) == 1 then redis.call('XGROUP', 'DESTROY', fence, group) end
end

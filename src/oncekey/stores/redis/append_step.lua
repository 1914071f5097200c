-- AppendStep: store a step while the attempt runs under this fence and token.
--
-- ARGV  1 fence, 2 token, 3 name of the step, 4 its value
-- Returns the fence (a number), the record found instead (a list), or nil if there is none.
--
-- A hash has no order: each value begins with the number of its step, eight digits, which it keeps
-- when it is replaced.

local found = redis.call('HMGET', key, 'state', 'fence', 'token')
if not found[1] then return false end
if found[1] ~= 'running' or found[2] ~= ARGV[1] or found[3] ~= ARGV[2] then
  return read_record(clock())
end

persist()
local field = 'step:' .. ARGV[3]
local kept = redis.call('HGET', key, field)
local number
if kept then
  -- The mark of its start may arrive late, after its result: never replace a result by a mark.
  if string.byte(kept, 9) == 1 and string.byte(ARGV[4], 1) == 0 then return tonumber(found[2]) end
  number = string.sub(kept, 1, 8)
else
  number = string.format('%08d', redis.call('HINCRBY', key, 'steps', 1))
end
redis.call('HSET', key, field, number .. ARGV[4])
return tonumber(found[2])

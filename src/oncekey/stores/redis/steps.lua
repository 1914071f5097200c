-- Steps: return names and values by turns, in no order; each value begins with the step's number.

local steps = {}
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, 5) == 'step:' then
    steps[#steps + 1] = string.sub(field, 6)
    steps[#steps + 1] = redis.call('HGET', key, field)
  end
end
return steps

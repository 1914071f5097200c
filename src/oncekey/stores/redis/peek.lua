-- Peek: state, fence, the lease's deadline and the time; or nil. The body is not read.

local found = redis.call('HMGET', key, 'state', 'fence', 'lease_until')
if not found[1] then return false end
found[4] = clock()
return found

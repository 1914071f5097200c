-- Peek: return state, fence, the lease's deadline and the time; or nil. Does not read the body.

local found = redis.call('HMGET', key, 'state', 'fence', 'lease_until')
if not found[1] then return false end
found[4] = clock()
return found

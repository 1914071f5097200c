-- Requested: return the request that the running claim has brought, or nil.

local found = redis.call('HMGET', key, 'state', 'token', 'request', 'request_of')
return found[1] == 'running' and found[2] == found[4] and found[3]

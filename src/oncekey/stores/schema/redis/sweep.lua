-- Sweep: remove the record if it is expired by this server's clock, now. Gives 1 if it was removed.

local expires = redis.call('HGET', key, 'expires')
if not expires or tonumber(expires) > clock() then return 0 end
return redis.call('UNLINK', key)

-- Sweep: remove the record if it is expired by this server's clock, now. Returns 1 if removed.

local found = redis.call('HMGET', key, 'expires', 'recovery')
if not found[1] or tonumber(found[1]) > clock() then return 0 end
if found[2] ~= 'rerun' then update_open_list('rerun') end
return redis.call('UNLINK', key)

-- Due, abandoned: ids and ends of leases by turns, the oldest first, of at most ARGV[1] records that
-- stand in the list. KEYS[1] is the list. What stands there wrongly is put right.

local now = clock()
local prefix = string.match(key, '^(.*:)')
local abandoned = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local found = redis.call('HMGET', prefix .. id, 'state', 'recovery', 'lease_until')
  if found[1] ~= 'running' or found[2] == 'rerun' then
    redis.call('ZREM', key, id)
  elseif tonumber(found[3]) > now then
    redis.call('ZADD', key, found[3], id)
  else
    abandoned[#abandoned + 1] = id
    abandoned[#abandoned + 1] = found[3]
  end
end
return abandoned

-- Due, abandoned: return ids and ends of leases by turns, the oldest first, of at most ARGV[1]
-- records in the list. KEYS[1] is the list. Wrong entries are corrected.

local now = clock()
local prefix = string.match(key, '^(.*[:/])')
local abandoned = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local found = redis.pcall('HMGET', prefix .. id, 'state', 'recovery', 'lease_until')
  local open = found[1] == 'running' and found[2] ~= 'rerun'
  if found.err then
    -- A cluster is moving them: the record is on the other node. The next call finds both again.
  elseif open and tonumber(found[3]) <= now then
    abandoned[#abandoned + 1] = id
    abandoned[#abandoned + 1] = found[3]
  else
    redis.call('ZREM', key, id) -- first: it needs no memory, so a full server allows it
    if open then redis.call('ZADD', key, found[3], id) end
  end
end
return abandoned

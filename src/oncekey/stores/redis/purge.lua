-- Purge: blank the content of a record of the tenant ARGV[1] that neither runs nor is blank yet.
-- Returns 1 if it was blanked.
--
-- State, fence, fingerprint and expiry stay, so that a retry is still recognised and does not run
-- again. Fields are removed first: that needs no memory, so a full server allows it.

local found = redis.call('HMGET', key, 'tenant', 'state', 'key')
if found[1] ~= ARGV[1] or found[2] == 'running' or found[3] == '' then return 0 end
redis.call('HDEL', key, 'headers', 'body', 'resource_id', 'field_digests', 'request',
  'request_of')
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, 5) == 'step:' then
    -- Keep its number, a flag for "no result", the length of its digest, and the digest.
    local value = redis.call('HGET', key, field)
    local digest_length = string.byte(value, 10) * 256 + string.byte(value, 11)
    redis.call('HSET', key, field,
      string.sub(value, 1, 8) .. '\0' .. string.sub(value, 10, 11 + digest_length))
  end
end
redis.call('HSET', key, 'key', '')
return 1

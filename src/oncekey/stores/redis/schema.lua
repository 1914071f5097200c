-- The schema version, in a hash of its own: a release that knows a newer version raises it, others
-- only read it. There is nothing else to migrate: an absent field has its default.
--
-- ARGV  1 the schema that this release writes, 2 the lowest that code must know to work with it
-- Returns both as stored now, and the version stored before.

local before = tonumber(redis.call('HGET', key, 'version')) or 0
if before < tonumber(ARGV[1]) then
  local reader = tonumber(redis.call('HGET', key, 'oldest_reader')) or 0
  redis.call('HSET', key, 'version', ARGV[1], 'oldest_reader', math.max(reader, ARGV[2]))
end
local found = redis.call('HMGET', key, 'version', 'oldest_reader')
return { found[1], found[2], before }

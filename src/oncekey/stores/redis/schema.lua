-- The schema's number, in a hash of its own: raised by whoever knows a newer one, else only read.
-- There is nothing else to migrate: a field that is absent has its default.
--
-- ARGV  1 the schema that this release writes, 2 the lowest that code must know to work with it
-- Gives both as they stand there now, and the number that stood there before.

local before = tonumber(redis.call('HGET', key, 'version')) or 0
if before < tonumber(ARGV[1]) then
  local reader = tonumber(redis.call('HGET', key, 'oldest_reader')) or 0
  redis.call('HSET', key, 'version', ARGV[1], 'oldest_reader', math.max(reader, ARGV[2]))
end
local found = redis.call('HMGET', key, 'version', 'oldest_reader')
return { found[1], found[2], before }

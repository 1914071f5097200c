-- The schema's number, in a hash of its own: written by whoever comes first, then only read.
--
-- ARGV  1 the schema that this release writes, 2 the lowest that code must know to work with it
-- Gives both as they stand there, and 1 if they were written now.

local fresh = redis.call('EXISTS', key) == 0
if fresh then redis.call('HSET', key, 'version', ARGV[1], 'oldest_reader', ARGV[2]) end
local found = redis.call('HMGET', key, 'version', 'oldest_reader')
return { found[1], found[2], fresh and 1 or 0 }

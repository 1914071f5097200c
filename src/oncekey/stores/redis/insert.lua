-- Insert: write a new running record; or return the existing one and write nothing.
--
-- ARGV  1 token, 2 lease_us, 3 retention_us, 4 tenant, 5 operation, 6 key, 7 fingerprint,
--       8 fingerprint_version, 9 recovery, 10 schema_version, 11 field_digests;
--       12 and on: names and values of all other fields to write
-- Returns the fence (a number), or the record found (a list).
--
-- The fence is the time in microseconds: greater than any that this id had before, even when an
-- earlier record has vanished, unless the server's clock was set back by more than its retention.
-- No expiry is set: a running record must not vanish by itself.

local now = clock()
if redis.call('EXISTS', key) == 1 then return read_record(now) end

local lease_until = now + ARGV[2]
redis.call('HSET', key,
  'state', 'running', 'fence', now, 'token', ARGV[1], 'attempt', 1, 'created', now,
  'lease_until', lease_until, 'expires', lease_until + ARGV[3],
  'lease_us', ARGV[2], 'retention_us', ARGV[3], 'tenant', ARGV[4], 'operation', ARGV[5],
  'key', ARGV[6], 'fingerprint', ARGV[7], 'fingerprint_version', ARGV[8], 'recovery', ARGV[9],
  'schema_version', ARGV[10], 'field_digests', ARGV[11], unpack(ARGV, 12))
if ARGV[9] ~= 'rerun' then update_open_list(ARGV[9], lease_until) end
return now

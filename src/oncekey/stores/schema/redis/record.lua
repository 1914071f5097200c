-- What the scripts share: this file is put before each of them. KEYS[1] is always the record.
--
-- A record is one hash: all of it has one slot, one expiry and one end. Steps are fields of it too,
-- named "step:<name>". A field that is absent has its default: 0, or nothing. Content is never
-- parsed here, only passed through, so any bytes survive.
--
-- Times are microseconds since 1970 by the clock of this server, and so are fences. Lua computes in
-- doubles, which are exact up to 2^53: 9.0e15 microseconds, the year 2255. Numbers that are handed
-- to redis.call, or returned, are written as integers; never join them to strings with "..", which
-- rounds to 14 digits.

local key = KEYS[1]

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The whole record, in the order of FIELDS in redis_calls.py, and the time of looking.
local function look(now)
  local found = redis.call('HMGET', key,
    'state', 'fence', 'token', 'tenant', 'operation', 'key', 'fingerprint', 'fingerprint_version',
    'lease_us', 'retention_us', 'recovery', 'schema_version', 'field_digests', 'attempt', 'lapses',
    'beat', 'no_effect', 'status', 'headers', 'resource_id', 'created', 'lease_until', 'expires',
    'replays', 'conflicts', 'body')
  found[#found + 1] = now
  return found
end

-- Take the expiry away: running and unknown records have none.
--
-- It is the first write of each script that changes a record. A server whose memory is full refuses
-- a script only if its first write is one that needs memory, and this one needs none. So an attempt
-- that runs can still renew, finish and release; or memory would never come free.
local function persist()
  redis.call('PERSIST', key)
end

local function forget_steps()
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'step:' then redis.call('HDEL', key, field) end
  end
end

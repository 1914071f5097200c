-- What the scripts share: this file is put before each of them. KEYS[1] is always the record.
--
-- A record is one hash: all of it has one slot, one expiry and one end. Steps are fields of it too,
-- named "step:<name>", and so is the request that a claim brought, beside that claim's token: under
-- any other token it is not the request of what runs. A field that is absent has its default: 0, or nothing. Content is never
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

-- What runs and is not simply run again by a retry is listed by the end of its lease, so that whoever
-- finishes abandoned work need not walk over all keys. The list is a hint, in one key for all that
-- share a prefix: a record that an older release has changed stands there wrongly, or not at all.
--
-- In a cluster, where prefixes end with "/", a slot moves key by key, and the list may be on the
-- other node. It must then not be made anew, for two of them could not be united. So there it is made
-- beforehand, and is written only where it is; the errors that say that it is not are no harm.
local function list(recovery, lease_until)
  local prefix, id = string.match(key, '^(.*[:/])(.*)$')
  local open = prefix .. 'open'
  if recovery == 'rerun' then
    redis.pcall('ZREM', open, id)
  elseif string.sub(prefix, -1) == ':' or redis.pcall('EXISTS', open) == 1 then
    redis.pcall('ZADD', open, lease_until, id)
  end
end

-- All of them, or only those that were begun and have no result.
local function forget_steps(only_begun)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'step:' then
      local value = only_begun and redis.call('HGET', key, field)
      if not value or string.byte(value, 9) == 0 then redis.call('HDEL', key, field) end
    end
  end
end

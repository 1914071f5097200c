-- Functions that all scripts share: this file is put before each of them. KEYS[1] is the record, or
-- another key that the script is about.
--
-- A record is one hash, so all of it has one slot and one expiry. Steps are fields of it, named
-- "step:<name>". So is the request of a claim, stored with that claim's token: under any other
-- token it is not the request of the running attempt. An absent field has its default: 0, or
-- nothing. Content is never parsed here, only passed through, so any bytes survive.
--
-- Times and fences are microseconds since 1970 by this server's clock. Lua computes in doubles,
-- which are exact up to 2^53: 9.0e15 microseconds, the year 2255. Numbers passed to redis.call, or
-- returned, are written as integers; never join them to strings with "..", which rounds to 14
-- digits.

local key = KEYS[1]

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Return the whole record, in the order of FIELDS in verbs.py, and the time.
local function read_record(now)
  local found = redis.call('HMGET', key,
    'state', 'fence', 'token', 'tenant', 'operation', 'key', 'fingerprint', 'fingerprint_version',
    'lease_us', 'retention_us', 'recovery', 'schema_version', 'field_digests', 'attempt', 'lapses',
    'beat', 'no_effect', 'status', 'headers', 'resource_id', 'created', 'lease_until', 'expires',
    'replays', 'conflicts', 'body')
  found[#found + 1] = now
  return found
end

-- Remove the expiry: running and unknown records have none.
--
-- This is the first write of each script that changes a record. A server whose memory is full
-- refuses a script only if its first write needs memory, and this one needs none. So a running
-- attempt can still renew, finish and release; otherwise memory would never be freed.
local function persist()
  redis.call('PERSIST', key)
end

-- Running records that a retry does not simply run again are listed by the end of their lease, so
-- that the recovery of abandoned work need not scan all keys. The list is a hint, in one key for
-- all records that share a prefix: a record that an older release has changed may be listed
-- wrongly, or not at all.
--
-- In a cluster, where prefixes end with "/", a slot moves key by key, and the list may be on the
-- other node. It must not be created again there, because two lists could not be merged. So it is
-- created beforehand and written only where it exists; the errors of a missing list are harmless.
local function update_open_list(recovery, lease_until)
  local prefix, id = string.match(key, '^(.*[:/])(.*)$')
  local open = prefix .. 'open'
  if recovery == 'rerun' then
    redis.pcall('ZREM', open, id)
  elseif string.sub(prefix, -1) == ':' or redis.pcall('EXISTS', open) == 1 then
    redis.pcall('ZADD', open, lease_until, id)
  end
end

-- Remove all steps, or only those that were begun and have no result.
local function forget_steps(only_begun)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 5) == 'step:' then
      local value = only_begun and redis.call('HGET', key, field)
      if not value or string.byte(value, 9) == 0 then redis.call('HDEL', key, field) end
    end
  end
end

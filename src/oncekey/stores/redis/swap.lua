-- Swap: compare-and-set on state, fence and token, if `when` holds by this server's clock, now.
--
-- ARGV  1 state, 2 fence, 3 token: as expected; 4 when
--       5 the new state; 6 "1" raises the fence; 7 lease_us, "0" unless the new state is running;
--       8 retention_us; 9 "1" starts afresh; 10 no_effect
--       11 the recovery of the claim that it brings, "" if it brings none
--       12 and on: names and values of all other fields to write
-- Returns the fence (a number), the record found instead (a list), or nil if there is none.

local found = redis.call('HMGET', key,
  'state', 'fence', 'token', 'lease_until', 'expires', 'lease_us', 'beat', 'recovery')
local state, fence = found[1], found[2]
if not state then return false end

local now = clock()
local lease_until, expires = tonumber(found[4]), tonumber(found[5])
local holds = {
  any = true,
  lapsed = state == 'running' and lease_until <= now,
  expired = expires <= now,
  overlong = state == 'running' and lease_until > now + found[6] * 1.001,
}
-- Compare as text: exact, whatever the numbers are.
if state ~= ARGV[1] or fence ~= ARGV[2] or found[3] ~= ARGV[3] or not holds[ARGV[4]] then
  return read_record(now)
end

persist()
local to = ARGV[5]
if ARGV[9] == '1' then
  forget_steps()
  redis.call('HDEL', key, 'status', 'headers', 'resource_id', 'body', 'request', 'request_of',
    'replays', 'conflicts')
  redis.call('HSET', key, 'created', now)
elseif to == 'completed' then
  redis.call('HDEL', key, 'status', 'headers', 'resource_id', 'body', 'request', 'request_of')
elseif to == 'released' and state == 'unknown' then
  forget_steps(true)
elseif to ~= 'running' or ARGV[11] ~= '' then
  redis.call('HDEL', key, 'request', 'request_of')
end

fence = tonumber(fence)
if ARGV[6] == '1' then fence = math.max(fence + 1, now) end
lease_until = now + ARGV[7]
expires = lease_until + ARGV[8]
redis.call('HSET', key,
  'state', to, 'fence', fence, 'lease_until', lease_until, 'expires', expires,
  'beat', (found[7] or 0) + 1, 'no_effect', ARGV[10], unpack(ARGV, 12))

local before, after = found[8], ARGV[11]
if after == '' then after = before end
if before ~= 'rerun' or after ~= 'rerun' then
  update_open_list(to == 'running' and after or 'rerun', lease_until)
end

if to == 'completed' or to == 'released' then
  -- In milliseconds, rounded up: a record expires before it vanishes, never the other way round.
  redis.call('PEXPIREAT', key, math.ceil(expires / 1000))
end
return fence

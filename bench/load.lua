-- What wrk sends: orders with a key. Keys are joined here, from pieces, so that the load costs
-- little. Arguments: what keys begin with; how many there are, 0 for a new one with every request;
-- the body.

local before, after, keys, sent = "", "", 0, 0

function init(arguments)
  local body = arguments[3]
  keys = tonumber(arguments[2])
  before = "POST /orders HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    .. "Content-Length: " .. #body .. "\r\nIdempotency-Key: " .. arguments[1]
  after = "\r\n\r\n" .. body
end

function request()
  sent = sent + 1
  local key = sent
  if keys > 0 then key = sent % keys end
  return before .. key .. after
end

function done(summary)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.6f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end

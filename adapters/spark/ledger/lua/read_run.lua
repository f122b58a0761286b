-- KEYS: a run, or the pointer to one. ARGV: for a pointer, the start of the names of runs.
-- The time, the token if KEYS had a pointer, then the fields; empty if the run is not stored.
local key, token = KEYS[1], false
if ARGV[1] then
  token = redis.call('GET', key)
  if not token then
    return {}
  end
  key = ARGV[1] .. token
end
local row = redis.call('HMGET', key, 'state', 'generation', 'epoch', 'fingerprint', 'output_ref', 'lease', 'began',
  'prepared', 'manifest', 'driver')
if not row[1] then
  return {}
end
local time = redis.call('TIME')
return {time[1] * 1000000 + time[2], token, unpack(row)}

-- KEYS: pointer to the newest generation, the new run. ARGV: token, the newest as seen ('' for none), generation, fingerprint
-- ('' for none), lease in microseconds, memory of the server, milliseconds to keep the run when it has ended,
-- its readable key, the driver.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], 'state', '1', 'epoch', '1', 'generation', ARGV[3], 'fingerprint', ARGV[4],
  'lease', string.format('%.0f', now + ARGV[5]), 'began', string.format('%.0f', now), 'memory', ARGV[6],
  'pointer', KEYS[1], 'owned', '0', 'prepared', '0', 'keep', ARGV[7], 'k', ARGV[8], 'driver', ARGV[9])
return 1

-- KEYS: names. ARGV: offset of the last byte to read of each value (-1: all).
-- Returns the server's time in microseconds, then the value and the failure of each key.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {now}
for _, key in ipairs(KEYS) do
  answers[#answers + 1] = redis.call('EXISTS', key) == 1 and redis.call('GETRANGE', key, 0, ARGV[1])
  answers[#answers + 1] = redis.call('GET', key .. ':f')
end
return answers

-- KEYS: names. ARGV: offset of the last byte to read of each value (-1: all), whether keys that are DONE are left out.
-- Returns the server's time in microseconds, then the value and the failure of each key; false for what is left out.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers = {now}
for _, key in ipairs(KEYS) do
  local read = redis.call('EXISTS', key) == 1
  if ARGV[2] == '1' and redis.call('GETRANGE', key, 33, 33) == '\4' then
    read = false
  end
  answers[#answers + 1] = read and redis.call('GETRANGE', key, 0, ARGV[1])
  answers[#answers + 1] = read and redis.call('GET', key .. ':f')
end
return answers

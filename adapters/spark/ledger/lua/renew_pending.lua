-- KEYS: claims. ARGV: milliseconds to keep claims, the attempt, lease in microseconds. For each claim: 1 if it is the
-- attempt's and pending.
local time = redis.call('TIME')
local lease = struct.pack('>I8', time[1] * 1000000 + time[2] + ARGV[3])
local answers = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 36)
  answers[i] = 0
  if value:byte(9) == 1 and value:sub(14, 29) == ARGV[2] then
    redis.call('SETRANGE', key, 29, lease)
    redis.call('PEXPIRE', key, ARGV[1])
    answers[i] = 1
  end
end
return answers

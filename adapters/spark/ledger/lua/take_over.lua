-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the head of the value, lease in microseconds, the epoch,
-- then for each claim its attempt and lease as they were seen. For each claim: 1 if it is this attempt's and pending now.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local run = redis.call('HMGET', KEYS[1], 'state', 'epoch')
local open = run[1] == '1' and run[2] == ARGV[4]
local fresh = ARGV[2] .. struct.pack('>I8', now + ARGV[3])
local answers = {}
for i = 2, #KEYS do
  local value = redis.call('GETRANGE', KEYS[i], 0, 36)
  if value:byte(9) == 1 then
    if open and value:sub(14) == ARGV[i + 3] then
      redis.call('SET', KEYS[i], fresh, 'PX', ARGV[1])
      value = fresh
    end
    answers[i - 1] = value:sub(14, 29) == ARGV[2]:sub(14, 29) and 1 or 0
  else
    answers[i - 1] = 0
  end
end
return answers

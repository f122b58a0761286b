-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the head of the value, lease in microseconds, the epoch.
-- The time, then for each claim its value, or nil if the key has no claim.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local run = redis.call('HMGET', KEYS[1], 'state', 'epoch')
local open = run[1] == '1' and run[2] == ARGV[4]
local value = ARGV[2] .. struct.pack('>I8', now + ARGV[3])
local answers = {now}
for i = 2, #KEYS do
  if open and redis.call('SET', KEYS[i], value, 'NX', 'PX', ARGV[1]) then
    answers[i] = value
  else
    answers[i] = redis.call('GET', KEYS[i])
  end
end
return answers

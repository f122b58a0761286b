-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the value, the epoch, token and mark that the claims are
-- stolen from, then for each claim a fingerprint or '', or none. For each claim: 1 if it is as this call makes it, but for
-- its fingerprint.
local run = redis.call('HMGET', KEYS[1], 'state', 'epoch')
local open = run[1] == '1' and run[2] == ARGV[3]
local answers, stolen = redis.call('MGET', unpack(KEYS, 2)), 0
for i = 1, #KEYS - 1 do
  local there = answers[i] or ''
  if open and there:sub(1, 8) == ARGV[4] and there:sub(10, 13) == ARGV[5] then
    there = ARGV[2] .. (ARGV[i + 5] or '')
    redis.call('SET', KEYS[i + 1], there, 'PX', ARGV[1])
    stolen = stolen + 1
  end
  answers[i] = there:sub(1, 15) == ARGV[2] and 1 or 0
end
if stolen > 0 then
  redis.call('HINCRBY', KEYS[1], 'owned', stolen)
end
return answers

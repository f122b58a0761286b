-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the value, the token it is stolen from, then for each claim
-- a fingerprint or '', or none. For each claim: 1 if it is this run's now.
local open = redis.call('HGET', KEYS[1], 'state') == '1'
local mine = ARGV[2]:sub(1, 8)
local answers = redis.call('MGET', unpack(KEYS, 2))
for i = 1, #KEYS - 1 do
  local owner = answers[i] and answers[i]:sub(1, 8)
  if open and owner == ARGV[3] then
    redis.call('SET', KEYS[i + 1], ARGV[2] .. (ARGV[i + 3] or ''), 'PX', ARGV[1])
    owner = mine
  end
  answers[i] = owner == mine and 1 or 0
end
return answers

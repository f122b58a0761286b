-- KEYS: the run, then claims. ARGV: milliseconds to remember, the value, then for each claim a fingerprint or '', or none.
-- For each claim: its value, 1 if it is new, or nil if it is nobody's.
local open = redis.call('HGET', KEYS[1], 'state') == '1'
local answers = redis.call('MGET', unpack(KEYS, 2))
if open then
  for i = 1, #KEYS - 1 do
    if not answers[i] then
      redis.call('SET', KEYS[i + 1], ARGV[2] .. (ARGV[i + 2] or ''), 'PX', ARGV[1])
      answers[i] = 1
    end
  end
end
return answers

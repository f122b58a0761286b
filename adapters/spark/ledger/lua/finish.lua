-- KEYS: claims. ARGV: milliseconds to keep claims, the attempt, then for each claim '', or '=' and the result.
-- For each claim: 1 if it is the attempt's.
local answers = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 36)
  answers[i] = 0
  if value:sub(14, 29) == ARGV[2] then
    redis.call('SET', key, value:sub(1, 8) .. '\2' .. value:sub(10) .. ARGV[i + 2], 'PX', ARGV[1])
    answers[i] = 1
  end
end
return answers

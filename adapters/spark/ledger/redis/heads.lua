-- KEYS: claims. Token and state of each, '' if it is gone.
local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = redis.call('GETRANGE', key, 0, 8)
end
return answers

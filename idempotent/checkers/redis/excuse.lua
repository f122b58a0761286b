-- KEYS: names. ARGV: the owner of each key. A lapse of those that are in progress then counts no attempt.
-- Returns for each key 1 if that owner has it, else 0.
local IN_PROGRESS, IN_PROGRESS_GROUP = 1, 2
local answers = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 54)
  answers[i] = 0
  if value:byte(1) == 1 and value:sub(36, 51) == ARGV[i] then
    if value:byte(34) == IN_PROGRESS then
      redis.call('SETRANGE', key, 33, string.char(IN_PROGRESS_GROUP))
    end
    answers[i] = 1
  end
end
return answers

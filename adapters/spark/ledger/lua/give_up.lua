-- KEYS: claims. ARGV: the attempt. Deletes those that are the attempt's and pending.
for _, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 36)
  if value:byte(9) == 1 and value:sub(14, 29) == ARGV[1] then
    redis.call('DEL', key)
  end
end
return 1

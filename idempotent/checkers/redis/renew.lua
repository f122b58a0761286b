-- KEYS: names. ARGV: the owner of each key. Returns for each key 1 if that owner holds it in progress, else 0.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

--#layout

local lease_until = LEASE > 0 and now + LEASE or 0
local answers = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 54)
  answers[i] = 0
  if value:sub(36, 51) == ARGV[i] then
    local _, _, _, expires, status = fields(value)
    if status < DONE then
      redis.call('SETRANGE', key, 9, struct.pack('>I8', lease_until))
      local at = forget_at(status, lease_until, expires)
      if at then
        redis.call('PEXPIREAT', key, at)
      else
        redis.call('PERSIST', key)
      end
      answers[i] = 1
    end
  end
end
return answers

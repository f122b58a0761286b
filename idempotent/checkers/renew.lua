-- KEYS: names. ARGV: lease (0: none), then an owner for each key. For each key: 1 if owned and in progress.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

--#layout

local lease = tonumber(ARGV[1])
local lease_until = lease > 0 and now + lease or 0
local answers = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GETRANGE', key, 0, 54)
  answers[i] = 0
  if value:sub(36, 51) == ARGV[i + 1] then
    local _, _, _, expires, status = fields(value)
    if status < DONE then
      redis.call('SETRANGE', key, 9, struct.pack('>I8', lease_until))
      local at = forget_at(status, lease_until, expires, 0)
      if not at then
        redis.call('PERSIST', key)
      elseif lease_until > expires then
        redis.call('PEXPIREAT', key, at)
      end
      answers[i] = 1
    end
  end
end
return answers

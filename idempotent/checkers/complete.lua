-- KEYS: names. ARGV: for each its owner, or owner, '=' and the result. For each key: 1 if owned.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answers, rest = {}, nil
for i = 1, #KEYS do
  local body = ARGV[i]
  local value = redis.call('GET', KEYS[i])
  if not value or value:sub(36, 51) ~= body:sub(1, 16) then
    answers[i] = 0
  else
    answers[i] = 1
    local lease, _, expires, status = struct.unpack('>I8I8I8B', value, 10)
    if #body == 16 and (status == 1 or status == 2) and lease > 0 and lease <= expires and now < expires then
      -- The TTL is right as it is: only times and status change.
      redis.call('SETRANGE', KEYS[i], 9, struct.pack('>I8I8I8B', 0, now, expires, 4))
    else
      rest = rest or {}
      rest[i] = value
    end
  end
end
if not rest then
  return answers
end

--#layout

for i, value in pairs(rest) do
  local body = ARGV[i]
  local fence, _, _, expires, _, flags = fields(value)
  if #body > 16 then
    local text, fingerprint = struct.unpack('>HH', value, 52)
    value = value:sub(1, 55 + text + fingerprint) .. body:sub(18)
    flags = bit.bor(flags, RESULT)
  end
  rewrite(KEYS[i], value, fence, 0, expires, DONE, flags)
end
return answers

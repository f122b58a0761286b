-- KEYS: names. ARGV: for each its owner, or owner, '=' and the result. For each key: 1 if owned.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local answers, rest = {}, nil
-- Keys that were claimed together have the same times and status, and need the same ones now.
local before, after
for i, key in ipairs(KEYS) do
  local body = ARGV[i]
  local value = call('GET', key)
  if not value or value:sub(36, 51) ~= body:sub(1, 16) then
    answers[i] = 0
  else
    answers[i] = 1
    local times = value:sub(10, 34)
    if times ~= before then
      local lease, _, expires, status = struct.unpack('>I8I8I8B', times)
      if (status == 1 or status == 2) and lease > 0 and lease <= expires and now < expires then
        before, after = times, struct.pack('>I8I8I8B', 0, now, expires, 4)
      end
    end
    if times == before and #body == 16 then
      -- The TTL is right as it is.
      call('SETRANGE', key, 9, after)
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

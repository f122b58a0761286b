-- KEYS: names. ARGV: for each key its owner, or its owner, '=' and the result.
-- Returns 1 if the owners own all keys, else for each key 1 (owned) or 0.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local rest, lost = nil, nil
-- Keys that were claimed together have equal times, status, flags and owner: compute the new bytes for the first only.
local before, owner, after
for i, key in ipairs(KEYS) do
  local body = ARGV[i]
  local value = call('GETRANGE', key, 9, 50)
  if value == before and body == owner then
    call('SETRANGE', key, 9, after)
  elseif #value < 42 or value:sub(27) ~= body:sub(1, 16) then
    lost = lost or {}
    lost[i] = true
  else
    local lease, _, expires, status = struct.unpack('>I8I8I8B', value)
    if #body == 16 and status == 1 and lease > 0 and lease <= expires
      and now + RETENTION / 2 <= expires then
      -- SETRANGE keeps the TTL, which is right already.
      before, owner, after = value, body, struct.pack('>I8I8I8B', 0, now, expires, 4)
      call('SETRANGE', key, 9, after)
    else
      rest = rest or {}
      rest[#rest + 1] = i
    end
  end
end
if not rest and not lost then
  return 1
end

--#layout

for _, i in ipairs(rest or {}) do
  local key, body = KEYS[i], ARGV[i]
  local value = call('GET', key)
  local fence, _, _, expires, _, flags = fields(value)
  if #body > 16 then
    local text, fingerprint = struct.unpack('>HH', value, 52)
    value = value:sub(1, 55 + text + fingerprint) .. body:sub(18)
    flags = bit.bor(flags, RESULT)
  end
  rewrite(key, value, fence, 0, expires, DONE, flags)
end
if not lost then
  return 1
end
local answers = {}
for i = 1, #KEYS do
  answers[i] = lost[i] and 0 or 1
end
return answers

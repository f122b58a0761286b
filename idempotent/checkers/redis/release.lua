-- KEYS: names. ARGV: for each key the text that release_body (layout.py) makes: its owner, or a failure.
-- Returns {owned, attempts, dead} for each key.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

--#layout

-- Frees a key after its backoff, as Backoff.delay_s counts it. Its content is not compared then.
local function hold(key, value, fence, expires, delay)
  if delay == 0 then
    redis.call('DEL', key)
    return
  end
  put(key, head(fence, now + delay, now, expires) .. string.char(IN_PROGRESS, 0) .. NOBODY .. value:sub(52),
    forget_at(IN_PROGRESS, now + delay, expires))
end

local function release(key, body)
  local value = redis.call('GET', key)
  local failing = #body > 16
  local failure = failing and redis.call('GET', key .. ':f')
  local token = body:sub(22, 29)
  if failure and failure:sub(5, 12) == token then
    -- This call ran before, and its answer was lost: repeat the answer.
    return {1, struct.unpack('>I4', failure), failure:byte(13)}
  end
  if not value or value:sub(36, 51) ~= body:sub(1, 16) then
    return {0, 0, 0}
  end
  local fence, lease, _, expires, status, flags = fields(value)
  if status >= DONE then
    return {0, 0, 0}
  end
  if not failing then
    redis.call('DEL', key)
    return {1, 0, 0}
  end
  local mode, limit = struct.unpack('>BI4', body, 17)
  local first, most, growth = struct.unpack('>I8I8d', body, 30)
  local attempts = (failure and struct.unpack('>I4', failure) or 0) + 1
  local dead = has(mode, 1) or attempts >= limit
  note(key, attempts, token, dead and 1 or 0, body:sub(54))
  if dead then
    rewrite(key, value, fence, 0, expires, DEAD, flags)
  else
    hold(key, value, fence, expires, math.floor(math.min(first * growth ^ math.min(attempts - 1, 64), most)))
  end
  return {1, attempts, dead and 1 or 0}
end

local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = release(key, ARGV[i])
end
return answers

-- KEYS: names. ARGV: for each key the text that claim_body (layout.py) makes.
-- Returns the fence alone if all keys were free. Else for each key its fence if it was free, or
-- {0 acquired, fence, deaths, failures of a retry}, {1 done, fingerprint, result}, {2 dead, fingerprint, reason},
-- {3 in progress, fingerprint, microseconds left of the lease (-1: it never ends), deaths or -1 held}, {4 unreadable}.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local lease_until = LEASE > 0 and now + LEASE or 0
local fresh = struct.pack('>BI8I8I8I8', 1, now, lease_until, now, now + RETENTION)
local taken
for i, key in ipairs(KEYS) do
  local body, acquired = ARGV[i], nil
  if LEASE > 0 and body:byte(1) ~= 3 then
    acquired = call('SET', key, fresh .. body, 'NX', 'PX', REMEMBER_MS)
  else
    -- A claim that never lapses, or of a consumer that parks, does not expire before it is done or dead.
    acquired = call('SET', key, fresh .. body, 'NX')
  end
  if not acquired then
    taken = taken or {}
    taken[#taken + 1] = i
  end
end
if not taken then
  return now
end

--#layout

local function fingerprint_of(data, from, flags)
  if not has(flags, FINGERPRINT) then
    return false
  end
  local text, fingerprint = struct.unpack('>HH', data, from + 18)
  return data:sub(from + 22 + text, from + 21 + text + fingerprint)
end

local function take_over(key, body, fence, update)
  put(key, head(fence + 1, lease_until, update, now + RETENTION) .. body,
    forget_at(body:byte(1), lease_until, now + RETENTION))
  return {0, fence + 1, fence + 1 - update}
end

local function park(key, value, fence, expires, flags)
  local failure = redis.call('GET', key .. ':f')
  rewrite(key, value, fence, 0, expires, DEAD, flags)
  local attempts = failure and struct.unpack('>I4', failure) or 0
  note(key, attempts, string.rep('\0', 8), 1, REASON)
  return {2, false, REASON}
end

local function judge(key, body)
  local value = redis.call('GET', key)
  local fence, until_, update, expires, status, flags = fields(value)
  if value:sub(36, 51) == body:sub(3, 18) then
    return {0, fence, status < DONE and fence - update or 0}
  end
  if status < DONE and value:sub(36, 51) == NOBODY then
    if until_ >= now then
      return {3, false, until_ - now, -1}
    end
    put(key, fresh .. body, forget_at(body:byte(1), lease_until, now + RETENTION))
    local failure = redis.call('GET', key .. ':f')
    return {0, now, 0, failure and struct.unpack('>I4', failure) or 0}
  end
  local fingerprint = fingerprint_of(value, 34, flags)
  if status == DONE then
    local text, length = struct.unpack('>HH', value, 52)
    return {1, fingerprint, has(flags, RESULT) and value:sub(56 + text + length)}
  end
  if status == DEAD then
    local failure = redis.call('GET', key .. ':f')
    return {2, fingerprint, failure and failure:sub(14)}
  end
  if until_ == 0 then
    return {3, fingerprint, -1, 0}
  end
  if until_ >= now then
    return {3, fingerprint, until_ - now, 0}
  end
  local mode = body:byte(2)
  local theirs = fingerprint_of(body, 1, mode)
  if has(mode, LEAVE) or (fingerprint and theirs and fingerprint ~= theirs) then
    return {3, fingerprint, 0, fence + 1 - update}
  end
  if has(mode, PARK) then
    return park(key, value, fence, expires, flags)
  end
  return take_over(key, body, fence, update)
end

local answers = {}
for i = 1, #KEYS do
  answers[i] = now
end
for _, i in ipairs(taken) do
  -- One unreadable value must not undo the answers for the other keys, which are claimed already.
  local readable, answer = pcall(judge, KEYS[i], ARGV[i])
  answers[i] = readable and answer or {4}
end
return answers

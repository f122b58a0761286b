-- Inserted into a script in place of `--#layout`; uses the script's `now`. layout.py describes the layout;
-- layout.py defines LEASE (0: a claim never lapses), RETENTION, DEAD_RETENTION (0: none), NEVER, REMEMBER_MS and REASON.
-- A script runs its common case before this line: Lua creates the functions again in each call, and that takes longer
-- than the commands.
local IN_PROGRESS, IN_PROGRESS_PARK, DONE, DEAD = 1, 3, 4, 5
local NOBODY = string.rep('\0', 16)
local FINGERPRINT, RESULT, LEAVE, PARK = 1, 2, 16, 32

local function has(flags, flag)
  return bit.band(flags, flag) ~= 0
end

local function head(fence, lease, update, expires)
  return struct.pack('>BI8I8I8I8', 1, fence, lease, update, expires)
end

-- fence, lease_until, update_at, expires_at, status, flags
local function fields(value)
  if value:byte(1) ~= 1 or #value < 55 then
    error('IDEMPOTENT a stored key has a layout that this version cannot read')
  end
  return struct.unpack('>I8I8I8I8BB', value, 2)
end

-- The expiry of a key that becomes final now. At least half of the retention is left to one that is done.
local function final_expiry(status, before, expires)
  if status == DEAD then
    return DEAD_RETENTION > 0 and now + DEAD_RETENTION or NEVER
  end
  if before == DEAD or expires < now + RETENTION / 2 then
    return now + RETENTION
  end
  return expires
end

-- When Redis may delete a key, in milliseconds since the epoch: at its expiry, but not before its lease ends. nil:
-- never, for a claim in progress that parks or never lapses, and for a dead key that waits for a person.
local function forget_at(status, lease, expires)
  if status < DONE then
    if status == IN_PROGRESS_PARK or lease == 0 then
      return nil
    end
    expires = math.max(expires, lease)
  elseif expires >= NEVER then
    return nil
  end
  return string.format('%.0f', math.ceil(expires / 1000))
end

local function put(key, value, at)
  if at then
    redis.call('SET', key, value, 'PXAT', at)
  else
    redis.call('SET', key, value)
  end
end

-- Replaces the status, flags and times; keeps the owner, text, fingerprint and result.
local function rewrite(key, value, fence, lease, expires, status, flags)
  local before = value:byte(34)
  if status >= DONE then
    expires = final_expiry(status, before, expires)
  end
  local at = forget_at(status, lease, expires)
  put(key, head(fence, lease, now, expires) .. string.char(status, flags) .. value:sub(36), at)
  if before == DEAD then
    redis.call('PEXPIREAT', key .. ':f', at)
  end
end

-- Keeps the attempts and the last error: with a dead key as long as the key, else for the retention.
local function note(key, attempts, token, dead, failure)
  local at = string.format('%.0f', math.ceil((now + RETENTION) / 1000))
  if dead == 1 then
    at = forget_at(DEAD, 0, final_expiry(DEAD))
  end
  put(key .. ':f', struct.pack('>I4', attempts) .. token .. string.char(dead) .. failure, at)
end

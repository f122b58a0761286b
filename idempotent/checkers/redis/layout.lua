-- Inserted into a script in place of `--#layout`; uses the script's `now`. layout.py describes the layout;
-- scripts.py defines LEASE (0: a claim never lapses), RETENTION, REMEMBER_MS and REASON.
-- A script runs its common case before this line: Lua creates the functions again in each call, and that takes longer
-- than the commands.
local IN_PROGRESS_GROUP, IN_PROGRESS_PARK, DONE, DEAD = 2, 3, 4, 5
local FINGERPRINT, RESULT, LAPSED, ALONE, LEAVE, PARK = 1, 2, 4, 8, 16, 32

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

-- When Redis may delete a key, in milliseconds since the epoch: at its expiry, but not before its lease ends. nil:
-- never, for a claim in progress that parks or never lapses. A key that is done or dead only after its expiry is kept
-- for another retention.
local function forget_at(status, lease, expires)
  if status < DONE then
    if status == IN_PROGRESS_PARK or lease == 0 then
      return nil
    end
    expires = math.max(expires, lease)
  elseif expires <= now then
    expires = now + RETENTION
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
  put(key, head(fence, lease, now, expires) .. string.char(status, flags) .. value:sub(36),
    forget_at(status, lease, expires))
end

local function note(key, attempts, token, dead, failure, expires)
  local at = math.max(expires, now + RETENTION)
  redis.call('SET', key .. ':f', struct.pack('>I4', attempts) .. token .. string.char(dead) .. failure,
    'PXAT', string.format('%.0f', math.ceil(at / 1000)))
end

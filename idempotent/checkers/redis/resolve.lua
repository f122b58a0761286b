-- Carries out a person's decision about one key, unless the key has changed since or its lease is live.
-- KEYS: its name. ARGV: the fence, status and update_at that the person saw; 'done' or 'reopen'.
-- Returns 1 if the key was changed, else 0.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

--#layout

local key = KEYS[1]
local value = redis.call('GET', key)
if not value then
  return 0
end
local fence, lease, update, expires, status, flags = fields(value)
if fence ~= tonumber(ARGV[1]) or status ~= tonumber(ARGV[2]) or update ~= tonumber(ARGV[3]) then
  return 0
end
-- A claim without a lease (0) never lapses; only a person can free it, so it passes this check. Nobody works on a key
-- that waits for its retry.
if status < DONE and lease >= now and value:sub(36, 51) ~= NOBODY then
  return 0
end
if ARGV[4] == 'reopen' then
  redis.call('DEL', key, key .. ':f')
  return 1
end
if status == DONE then
  return 0
end
rewrite(key, value, fence, 0, expires, DONE, flags)
return 1

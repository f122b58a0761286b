-- KEYS: runs, or pointers to runs. ARGV: for pointers the start of the names of runs, else ''; then names of fields.
-- The time, then for each of KEYS the token that a pointer has, and the fields; those of a run that is not stored are nil.
local time = redis.call('TIME')
local rows = {time[1] * 1000000 + time[2]}
for i, key in ipairs(KEYS) do
  local token = ARGV[1] ~= '' and redis.call('GET', key)
  rows[i + 1] = {token, unpack(redis.call('HMGET', token and ARGV[1] .. token or key, unpack(ARGV, 2)))}
end
return rows

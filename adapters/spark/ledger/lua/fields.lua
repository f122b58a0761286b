-- KEYS: runs. ARGV: names of fields. The time, then for each run its fields; those of a run that is not stored are nil.
local time = redis.call('TIME')
local rows = {time[1] * 1000000 + time[2]}
for i, key in ipairs(KEYS) do
  rows[i + 1] = redis.call('HMGET', key, unpack(ARGV))
end
return rows

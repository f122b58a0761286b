-- KEYS: the run. ARGV: the fields of RunChange in their order ('' for None and false; states as digits), and for a run that is
-- resumed: milliseconds to keep it at least once it has ended, memory of the server if it is OPEN, the driver. 1 if the conditions held
-- and the run is changed.
local within, to, lease, epoch, resumes, owned, max_age, only_lapsed, fingerprint, manifest, output_ref, keep_ms, memory,
  driver = unpack(ARGV)
local key = KEYS[1]
local row = redis.call('HMGET', key, 'state', 'epoch', 'lease', 'began', 'fingerprint', 'pointer', 'owned', 'keep')
local state = row[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not state or not within:find(state, 1, true)
  or (epoch ~= '' and row[2] ~= epoch)
  or (owned ~= '' and (row[7] or '0') ~= owned)
  or (max_age ~= '' and now > row[4] + max_age)
  or (only_lapsed == '1' and row[3] + 0 >= now) then
  return 0
end
if lease ~= '' then
  redis.call('HSET', key, 'lease', string.format('%.0f', now + lease))
end
if resumes == '1' then
  redis.call('HINCRBY', key, 'epoch', 1)
  redis.call('HSET', key, 'driver', driver)
  if row[8] + 0 < keep_ms + 0 then
    redis.call('HSET', key, 'keep', keep_ms)
  end
  if state == '1' then
    redis.call('HSET', key, 'memory', memory, 'owned', '0')
  end
end
if fingerprint ~= '' and row[5] == '' then
  redis.call('HSET', key, 'fingerprint', fingerprint)
end
if manifest ~= '' then
  redis.call('HSET', key, 'manifest', manifest)
end
if output_ref ~= '' then
  redis.call('HSET', key, 'output_ref', output_ref)
end
if to ~= '' then
  redis.call('HSET', key, 'state', to)
  if to == '2' then
    redis.call('HSET', key, 'prepared', row[2])
  end
  if to == '3' or to == '4' then
    redis.call('PEXPIRE', key, row[8])
    redis.call('PEXPIRE', row[6], row[8])
  end
end
return 1

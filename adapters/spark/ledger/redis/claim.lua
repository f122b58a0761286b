-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the value, then for each claim a fingerprint or '', or none.
-- 0 if every claim is as this call makes it, the common case. Otherwise a number for each claim: 0 if it is as this call
-- makes it, -1 if the key has no owner, or else the place, from 1, of its value among the values after these numbers.
local call = redis.call
local open = call('HGET', KEYS[1], 'state') == '1'
local answers = call('MGET', unpack(KEYS, 2))
local keep_ms, value, marked = ARGV[1], ARGV[2], ARGV[3] ~= nil
local own, values, places, same = value, {}, {}, true
for i = 1, #answers do
  local there = answers[i]
  if marked then
    own = value .. ARGV[i + 2]
  end
  answers[i] = 0
  if there == own then
  elseif there then
    same = false
    if not places[there] then
      values[#values + 1] = there
      places[there] = #values
    end
    answers[i] = places[there]
  elseif open then
    call('SET', KEYS[i + 1], own, 'PX', keep_ms)
  else
    same = false
    answers[i] = -1
  end
end
if same then
  return 0
end
local count = #answers
for i = 1, #values do
  answers[count + i] = values[i]
end
return answers

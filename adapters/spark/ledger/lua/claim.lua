-- KEYS: the run, then claims. ARGV: milliseconds to keep claims, the value, the epoch, then for each claim a fingerprint or
-- '', or none.
-- 0 if every claim is as this call makes it, the common case. Otherwise a number for each claim: 0 if it is as this call
-- makes it, -1 if the key has no owner, or else the place, from 1, of its value among the values after these numbers.
local call = redis.call
local run = call('HMGET', KEYS[1], 'state', 'epoch')
local open = run[1] == '1' and run[2] == ARGV[3]
local answers = call('MGET', unpack(KEYS, 2))
local keep_ms, value, marked = ARGV[1], ARGV[2], ARGV[4] ~= nil
local own, values, places, same, made = value, {}, {}, true, 0
for i = 1, #answers do
  local there = answers[i]
  if marked then
    own = value .. ARGV[i + 3]
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
    made = made + 1
  else
    same = false
    answers[i] = -1
  end
end
if made > 0 then
  call('HINCRBY', KEYS[1], 'owned', made)
end
if same then
  return 0
end
local count = #answers
for i = 1, #values do
  answers[count + i] = values[i]
end
return answers

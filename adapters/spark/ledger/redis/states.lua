-- KEYS: runs. The state of each, or nil.
local states = {}
for i, key in ipairs(KEYS) do
  states[i] = redis.call('HGET', key, 'state')
end
return states

-- KEYS: runs. State, epoch, prepared epoch and run_id of each; the state of a run that is not stored is nil.
local standings = {}
for i, key in ipairs(KEYS) do
  standings[i] = redis.call('HMGET', key, 'state', 'epoch', 'prepared', 'run_id')
end
return standings

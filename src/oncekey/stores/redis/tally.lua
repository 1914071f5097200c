-- Tally: add ARGV[1] replays and ARGV[2] conflicts to an existing record; no deadline changes.

if redis.call('EXISTS', key) == 0 then return 0 end
redis.call('HINCRBY', key, 'replays', ARGV[1])
redis.call('HINCRBY', key, 'conflicts', ARGV[2])
return 1

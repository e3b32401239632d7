#!lua flags=allow-oom
-- Reads records. It writes nothing, and does not say so: a script that may write is refused by a
-- server that is not the master any more, so that nobody reads what a replica remembers.
--
-- KEYS: the version counter, then the record keys.
-- Gives the version counter, the server's seconds and microseconds, then per record its bytes and
-- the milliseconds it has left (-1: no end), or two nils.

local time = redis.call('TIME')
local answer = { redis.call('GET', KEYS[1]) or '0', time[1], time[2] }
for place = 2, #KEYS do
    local raw = redis.call('GET', KEYS[place])
    answer[#answer + 1] = raw
    answer[#answer + 1] = raw and redis.call('PTTL', KEYS[place])
end
return answer

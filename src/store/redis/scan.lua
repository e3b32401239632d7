#!lua flags=allow-oom
-- Lists records in the order of their keys. See read.lua for its flags.
--
-- KEYS: the index. ARGV: the prefix of record keys, first and last bound as ZRANGEBYLEX has them,
-- how many keys to look at.
-- Gives the server's seconds and microseconds, how many keys were looked at, the last of them or
-- '', then per live record: key, bytes, milliseconds left (-1: no end).

local prefix = ARGV[1]
local members = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, tonumber(ARGV[4]))
local time = redis.call('TIME')
local answer = { time[1], time[2], #members, members[#members] or '' }
for _, member in ipairs(members) do
    local raw = redis.call('GET', prefix .. member)
    if raw then
        answer[#answer + 1] = member
        answer[#answer + 1] = raw
        answer[#answer + 1] = redis.call('PTTL', prefix .. member)
    end
end
return answer

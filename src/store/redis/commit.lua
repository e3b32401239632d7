#!lua
-- Applies batches in order, each all or nothing.
--
-- KEYS: the version counter, the index, the ends, then every record key the batches name.
-- ARGV: the prefix of record keys; the number of batches; per batch
--   the number of conditions, each as: kind (A, V, E), its place in KEYS, version or value
--   the number of writes, each as: place in KEYS, kind (P, D), value, milliseconds to live or ''
-- Gives per batch: 'C' and a version per write, or 'X' and the index of the condition that failed.
--
-- A record is "<version>:<value>". The index holds the keys of all records by their bytes; the
-- ends hold those of records with a time to live, by the instant it is over.

local counter, index, ends = KEYS[1], KEYS[2], KEYS[3]
local at = 0
local function next_arg()
    at = at + 1
    return ARGV[at]
end

local prefix = next_arg()
local batches = tonumber(next_arg())

-- Versions are strings here: a Lua number is exact only up to 2^53.
local last = redis.call('GET', counter) or '0'
if #last > 19 or (#last == 19 and last >= '9223372036854000000') then
    return redis.error_reply('HOMINGSPENT store versions have run out (2^63-1 used)')
end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A little of what has expired leaves the index with every commit.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now_ms, 'LIMIT', 0, 64)) do
    if redis.call('EXISTS', prefix .. member) == 0 then
        redis.call('ZREM', ends, member)
        redis.call('ZREM', index, member)
    end
end

local function live(key)
    local raw = redis.call('GET', key)
    if not raw then
        return nil
    end
    local colon = string.find(raw, ':', 1, true)
    return string.sub(raw, 1, colon - 1), string.sub(raw, colon + 1)
end

local function next_version()
    redis.call('INCR', counter)
    return redis.call('GET', counter)
end

local answers = {}
for batch = 1, batches do
    local failed = nil
    for condition = 0, tonumber(next_arg()) - 1 do
        local kind, key, wanted = next_arg(), KEYS[tonumber(next_arg())], next_arg()
        if not failed then
            local version, value = live(key)
            local holds
            if kind == 'A' then
                holds = not version
            elseif kind == 'V' then
                holds = version == wanted
            else
                holds = value == wanted
            end
            if not holds then
                failed = condition
            end
        end
    end
    local answer = { failed and 'X' or 'C', failed }
    for _ = 1, tonumber(next_arg()) do
        local key, kind, value, ttl_ms = KEYS[tonumber(next_arg())], next_arg(), next_arg(), next_arg()
        if not failed then
            local member = string.sub(key, #prefix + 1)
            local version = next_version()
            if kind == 'D' then
                redis.call('DEL', key)
                redis.call('ZREM', index, member)
                redis.call('ZREM', ends, member)
            elseif ttl_ms == '' then
                redis.call('SET', key, version .. ':' .. value)
                redis.call('ZADD', index, 0, member)
                redis.call('ZREM', ends, member)
            else
                redis.call('SET', key, version .. ':' .. value, 'PX', ttl_ms)
                redis.call('ZADD', index, 0, member)
                redis.call('ZADD', ends, now_ms + tonumber(ttl_ms), member)
            end
            answer[#answer + 1] = version
        end
    end
    answers[batch] = answer
end
return answers

"""What the Redis queue does, as scripts that Redis runs whole or not at all. Time is Redis' own, in milliseconds.

A queue named ``pages`` is these keys:

- ``pages``: the inbox, where other programs push: a list, a set or a sorted set; we only take from it;
- ``{pages}:fresh`` and ``{pages}:retry``: the two buckets, sorted by rank (9 − priority), then by arrival;
- ``{pages}:tasks``: id → the message as it came; ``{pages}:about``: id → rank, deliveries, token, dedupe key;
- ``{pages}:flight``: id by the time at which its consumer loses it; this is the processing list;
- ``{pages}:dead``: the dead letters with their reasons, the newest first, 10,000 at most;
- ``{pages}:held`` and ``{pages}:kept``: dedupe key → id, and until when once that task is done;
- ``{pages}:totals``: counters.

The braces keep them in one slot of a cluster. Every script first gives back what ran out, so that there is no reaper
to keep alive: whoever touches the queue reaps it.

A script that fails stops the queue for everybody. So what is kept of a task is looked at before it is believed: a task
of which it can't be read becomes a dead letter, and the rest flows.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ACK", "BURY", "EXTEND", "KEYS", "NACK", "POP", "PUSH", "REVIVE", "STATS"]

#: What comes after the inbox, in the order of the scripts' KEYS.
KEYS: Final = ("fresh", "retry", "tasks", "about", "flight", "dead", "held", "kept", "totals")

#: ARGV[1]: the most deliveries of a task; ARGV[2]: how long a delivery lasts, ms. A script's own begin at ARGV[3].
_BEGIN: Final = """
local inbox, fresh, retry, tasks, about, flight, dead, held, kept, totals = unpack(KEYS)
local most, visible_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local RANK = 17592186044416  -- 2^44 arrivals fit between two ranks; a score has 53 bits
local LOOKED_AT_BYTES = 70000  -- above the longest message that can be a task
local DEAD_MOST = 10000  -- at 64 KiB each some 600 MB of Redis' memory; beyond that the oldest go
local AT_ONCE = 100  -- what one script gives back or forgets on the way: a millisecond of Redis

local DAMAGED = "damaged: what the queue keeps of it can't be read"

local function count(name, by)
  local total = redis.pcall('HINCRBY', totals, name, by)
  if type(total) == 'number' then return total end
  redis.call('HSET', totals, name, now)  -- no number: begin anew, above whatever it can have been
  return now
end
local function note(id, state) redis.call('HSET', about, id, cjson.encode(state)) end
local function line_up(bucket, id, state)
  redis.call('ZADD', bucket, state.rank * RANK + count('arrivals', 1), id)
end
local function forget(id)
  redis.call('HDEL', tasks, id)
  redis.call('HDEL', about, id)
end
local function bury(id, state, reason)
  local message = string.sub(redis.call('HGET', tasks, id) or '', 1, LOOKED_AT_BYTES)
  local letter = {id = id, message = message, reason = reason, deliveries = state.n, at = now / 1000, rank = state.rank}
  redis.call('LPUSH', dead, cjson.encode(letter))
  redis.call('LTRIM', dead, 0, DEAD_MOST - 1)
  if state.key then redis.call('HDEL', held, state.key) end
  forget(id)
  count('dead', 1)
end
local function read(text)
  local is_json, found = pcall(cjson.decode, text)
  return is_json and type(found) == 'table' and found
end
local function within(number, least, most) return type(number) == 'number' and number >= least and number <= most end
local function look(id)
  local text = redis.call('HGET', about, id)
  if not text then return nil end
  local state = read(text)
  if state and within(state.rank, 0, 9) and within(state.n, 0, 2^31)
    and (not state.token or type(state.token) == 'string')
    and (not state.key or type(state.key) == 'string' and within(state.ttl, 0, 2^53)) then
    return state
  end
  for _, key in ipairs({fresh, retry, flight}) do redis.call('ZREM', key, id) end
  bury(id, {rank = 4, n = 0}, DAMAGED)
  count('damaged', 1)
  return nil
end
local function give_back(id, state, reason)
  redis.call('ZREM', flight, id)
  state.token = nil
  if reason == '' then
    state.n = state.n - 1
  elseif state.n >= most then
    return bury(id, state, reason)
  end
  note(id, state)
  line_up(retry, id, state)
end
local function mine(id, token)
  local state = look(id)
  return state and state.token == token and state
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', flight, '-inf', now, 'LIMIT', 0, AT_ONCE)) do
  local state = look(id)
  if state then
    count('expired', 1)
    give_back(id, state, 'worker_lost')
  else
    redis.call('ZREM', flight, id)
  end
end
"""

#: A delivery and its token at a time, from ARGV[first]; the script ends with how many were still theirs, as 1 and 0.
_EACH_DELIVERY: Final = """
local answers = {}
for i = %(first)d, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local state = mine(id, token)
  if state then
    %(act)s
  end
  answers[#answers + 1] = state and 1 or 0
end
return answers
"""

#: Tasks: id, message, rank, dedupe key or '', how long that is kept after the task is done (ms). Answers: their ids.
PUSH: Final = (
    _BEGIN
    + """
local ids = {}
for i = 3, #ARGV, 5 do
  local id, message, rank, key, ttl_ms = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], tonumber(ARGV[i + 4])
  local other = false
  if key ~= '' then
    other = redis.call('HGET', held, key)
    local until_ms = redis.call('ZSCORE', kept, key)
    if until_ms and tonumber(until_ms) <= now then other = false end
    if other and not until_ms and redis.call('HEXISTS', about, other) == 0 then other = false end
  end
  if other then
    ids[#ids + 1] = other
  else
    if redis.call('HSETNX', tasks, id, message) == 1 then
      local state = {rank = rank, n = 0}
      if key ~= '' then
        state.key, state.ttl = key, ttl_ms
        redis.call('HSET', held, key, id)
        redis.call('ZREM', kept, key)
      end
      note(id, state)
      line_up(fresh, id, state)
    end
    ids[#ids + 1] = id
  end
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now, 'LIMIT', 0, AT_ONCE)) do
  redis.call('ZREM', kept, key)
  redis.call('HDEL', held, key)
end
return ids
"""
)

#: How many; a prefix of fresh ids and tokens; the end of a list that is the front. Answers: how many damaged tasks were
#: put aside since a pop last said so; and id, message, deliveries, token of each that is taken. What other programs
#: pushed gets an id and its place in line first.
POP: Final = (
    _BEGIN
    + """
local wanted, prefix, front = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local TAKEN_IN = 64  -- messages that a pop takes in at least, so that urgent ones among them come first
local shape = redis.call('TYPE', inbox).ok
if shape ~= 'none' and shape ~= 'list' and shape ~= 'set' and shape ~= 'zset' then
  return redis.error_reply('WRONGTYPE the key ' .. inbox .. ' holds a ' .. shape)
end
for i = 1, shape == 'none' and 0 or math.max(wanted, TAKEN_IN) do
  local message
  if shape == 'list' then
    message = redis.call(front == 'left' and 'LPOP' or 'RPOP', inbox)
  elseif shape == 'set' then
    message = redis.call('SPOP', inbox)
  else
    message = redis.call('ZPOPMAX', inbox)[1]
  end
  if not message then break end
  local rank = 4
  if #message < LOOKED_AT_BYTES and string.find(message, '^%s*{') then
    local fields = read(message)
    if fields and within(fields.priority, 0, 9) then rank = 9 - math.floor(fields.priority) end
  end
  local id = prefix .. '-' .. count('named', 1)
  local state = {rank = rank, n = 0}
  redis.call('HSET', tasks, id, message)
  note(id, state)
  line_up(fresh, id, state)
end
local taken = {}
while #taken < wanted do
  local first = redis.call('ZPOPMIN', fresh)
  if #first == 0 then first = redis.call('ZPOPMIN', retry) end
  if #first == 0 then break end
  local id = first[1]
  local state = look(id)
  if state then
    state.n = state.n + 1
    state.token = prefix .. '/' .. #taken
    note(id, state)
    redis.call('ZADD', flight, now + visible_ms, id)
    local message = redis.call('HGET', tasks, id) or ''  -- another program may have deleted it
    taken[#taken + 1] = {id, string.sub(message, 1, LOOKED_AT_BYTES), state.n, state.token}
  end
end
local damaged = count('damaged', 0) - count('told', 0)
if damaged ~= 0 then count('told', damaged) end
return {damaged, taken}
"""
)

ACK: Final = _BEGIN + _EACH_DELIVERY % {
    "first": 3,
    "act": """redis.call('ZREM', flight, id)
    if state.key then redis.call('ZADD', kept, now + state.ttl, state.key) end
    forget(id)
    count('done', 1)""",
}
#: ARGV[3]: the reason, or ''.
NACK: Final = _BEGIN + _EACH_DELIVERY % {"first": 4, "act": "give_back(id, state, ARGV[3])"}
#: ARGV[3]: the reason.
BURY: Final = _BEGIN + _EACH_DELIVERY % {
    "first": 4,
    "act": """redis.call('ZREM', flight, id)
    bury(id, state, ARGV[3])""",
}
EXTEND: Final = _BEGIN + _EACH_DELIVERY % {"first": 3, "act": "redis.call('ZADD', flight, now + visible_ms, id)"}

#: ARGV[3]: how many. The oldest dead letters become fresh work; a task that was pushed again meanwhile is left alone.
#: Answers: how many did.
REVIVE: Final = (
    _BEGIN
    + """
local revived = 0
for _ = 1, math.min(tonumber(ARGV[3]), redis.call('LLEN', dead)) do
  local letter = redis.call('RPOP', dead)
  local text = letter
  letter = read(text)
  if not (letter and type(letter.id) == 'string' and type(letter.message) == 'string'
    and within(letter.rank, 0, 9)) then
    local id, message = 'damaged-' .. count('named', 1), string.sub(text, 1, LOOKED_AT_BYTES)
    letter = {id = id, message = message, reason = DAMAGED, deliveries = 0, at = now / 1000, rank = 4}
    redis.call('LPUSH', dead, cjson.encode(letter))
  elseif redis.call('HSETNX', tasks, letter.id, letter.message) == 1 then
    local state = {rank = letter.rank, n = 0}
    note(letter.id, state)
    line_up(fresh, letter.id, state)
    revived = revived + 1
  end
end
return revived
"""
)

#: Answers: in the inbox, fresh, retrying, in flight, dead letters, done.
STATS: Final = (
    _BEGIN
    + """
local shape = redis.call('TYPE', inbox).ok
local arrived = 0
if shape == 'list' then arrived = redis.call('LLEN', inbox)
elseif shape == 'set' then arrived = redis.call('SCARD', inbox)
elseif shape == 'zset' then arrived = redis.call('ZCARD', inbox) end
return {
  arrived, redis.call('ZCARD', fresh), redis.call('ZCARD', retry), redis.call('ZCARD', flight),
  redis.call('LLEN', dead), count('done', 0)
}
"""
)

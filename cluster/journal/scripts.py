"""What the journal does in Redis in one atomic step each: Lua for Redis 6.2.

A stream has one owner, and a fence that rises with each new owner. A writer names the fence under
which it owns the stream. Redis refuses its entries once the fence is another one.

A fence is compared where something may have changed. Whatever changes a stream removes the name of
its owner's last batch (`JournalKeys.turn`). Then the owner has each of its streams checked again.
"""

from __future__ import annotations

# ARGV: prefix, epoch, time to live of a running and of an ended stream (ms), router, the name of
# its last batch or "", the name of this batch, the batch.
# Answers with a letter for each stream (batches.Appended), or with "" where the epoch is another
# or the last batch is: another router changed a stream of this one, or Redis lost the batch.
APPEND = """
local prefix, router, batch = ARGV[1], ARGV[5], ARGV[8]
local life, kept = tonumber(ARGV[3]), tonumber(ARGV[4])
local streams, turn = prefix .. 'stream:', prefix .. 'journal:turn:' .. router
if redis.call('GET', prefix .. 'journal:epoch') ~= ARGV[2] then return '' end
if ARGV[6] ~= '' and redis.call('GET', turn) ~= ARGV[6] then return '' end
redis.call('SET', turn, ARGV[7], 'PX', life)

local function create(key, id, fence, request, tenant)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('DEL', key, key .. ':events')
  redis.call('HSET', key, 'request', request, 'owner', router, 'tenant', tenant, 'fence', fence)
  redis.call('PEXPIRE', key, life)
  local index = prefix .. 'journal:tenant:' .. tenant
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  redis.call('ZADD', index, now + life, id)
  redis.call('PEXPIRE', index, life)
end

local function holed(events)
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local length = last and tonumber(last[1]:match('^%d+')) or -1
  return redis.call('EXISTS', events) == 1 and redis.call('XLEN', events) ~= length
end

local function checked(id, fence, flags, first, count, at)
  local key = streams .. id
  local events = key .. ':events'
  local known = redis.call('HMGET', key, 'fence', 'cancelled', 'owner')
  local current, owner = tonumber(known[1] or 0) or 0, known[3]
  if flags % 2 == 1 then
    local request, tenant
    request, tenant, at = struct.unpack('>I4c0I4c0', batch, at)
    if current < fence then
      if owner and owner ~= router then redis.call('DEL', prefix .. 'journal:turn:' .. owner) end
      create(key, id, fence, request, tenant)
      current, owner = fence, router
    elseif current == fence and holed(events) then
      redis.call('DEL', events)
    end
  end
  local whole = current == fence and redis.call('XLEN', events) >= first - 1
  for sequence = first, first + count - 1 do
    local entry
    entry, at = struct.unpack('>I4c0', batch, at)
    if whole then
      local added = redis.pcall('XADD', events, sequence .. '-0', 'e', entry)
      if type(added) == 'table' and added.err and not added.err:find('equal or smaller') then
        return added
      end
    end
  end
  if not whole then return current == fence and 't' or current == 0 and 'g' or 'f', at end
  if owner ~= router then redis.call('HSET', key, 'owner', router) end
  if first == 1 and count > 0 then redis.call('PEXPIRE', events, redis.call('PTTL', key)) end
  if math.floor(flags / 2) % 2 == 1 then
    redis.call('HSET', key, 'ended', '1')
    redis.call('PEXPIRE', key, kept)
    redis.call('PEXPIRE', events, kept)
  end
  return known[2] and 'c' or 'w', at
end

local at, answers = 1, {}
while at <= #batch do
  local id, fence, flags, first, count
  id, fence, flags, first, count, at = struct.unpack('>c22I4BI4I4', batch, at)
  local answer, added
  if flags == 0 and count == 1 then
    -- Nothing changed since the last batch: the stream is whole, and this router's, or gone.
    local entry, after = struct.unpack('>I4c0', batch, at)
    added = redis.pcall('XADD', streams .. id .. ':events', 'NOMKSTREAM', first .. '-0', 'e', entry)
    if type(added) == 'string' then answer, at = 'w', after end
  end
  if not answer then answer, at = checked(id, fence, flags, first, count, at) end
  if not at then return answer end
  answers[#answers + 1] = answer
end
return table.concat(answers)
"""

# KEYS: stream, events. ARGV: sequence number to read after, most entries, prefix of the leases,
# "1" for the request too, "1" where somebody listens.
READ = """
local known = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'ended', 'cancelled')
if not known[1] then return false end
if ARGV[5] == '1' then
  local clock = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'listened', clock[1] * 1000 + math.floor(clock[2] / 1000))
end
local request = ARGV[4] == '1' and redis.call('HGET', KEYS[1], 'request') or ''
local alive = redis.call('EXISTS', ARGV[3] .. known[1])
local entries = {}
if tonumber(ARGV[2]) > 0 then
  entries = redis.call('XRANGE', KEYS[2], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
end
return {known[1], known[2], known[3] and 1 or 0, known[4] and 1 or 0, alive, request, entries}
"""

# KEYS: stream, events. ARGV: router, prefix of the leases, time to live of a running stream (ms),
# prefix of the tenants' indices, stream id, prefix of the names of last batches.
# Answers with the outcome, the fence, and whether the stream is to be cancelled.
TAKE_OVER = """
local known = redis.call('HMGET', KEYS[1], 'owner', 'ended', 'cancelled', 'tenant')
if not known[1] then return {'gone', 0, 0} end
if known[2] then return {'ended', 0, 0} end
if known[1] ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. known[1]) == 1 then
  return {'held', 0, 0}
end
redis.call('DEL', ARGV[6] .. known[1])
local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local clock, index = redis.call('TIME'), ARGV[4] .. known[4]
redis.call('ZADD', index, clock[1] * 1000 + ARGV[3], ARGV[5])
redis.call('PEXPIRE', index, ARGV[3])
return {'taken', fence, known[3] and 1 or 0}
"""

# KEYS: stream, the name of the router's last batch. ARGV: router.
# The stream is nobody's then, and any router can take it over.
RELEASE = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'owner', '')
  redis.call('DEL', KEYS[2])
end
"""

# KEYS: stream. ARGV: prefix of the inboxes, stream id, most orders, time to live of an inbox (ms),
# prefix of the names of last batches.
# Answers with 1 where the stream still runs.
CANCEL = """
local known = redis.call('HMGET', KEYS[1], 'owner', 'ended')
if not known[1] or known[2] then return 0 end
redis.call('HSET', KEYS[1], 'cancelled', '1')
local inbox = ARGV[1] .. known[1]
redis.call('RPUSH', inbox, ARGV[2])
redis.call('LTRIM', inbox, -tonumber(ARGV[3]), -1)
redis.call('PEXPIRE', inbox, ARGV[4])
redis.call('DEL', ARGV[5] .. known[1])
return 1
"""

# KEYS: the index of a tenant. ARGV: prefix of the streams. Answers with the number of streams.
FORGET_TENANT = """
local ids = redis.call('ZRANGE', KEYS[1], 0, -1)
local found = 0
for _, id in ipairs(ids) do
  found = found + redis.call('UNLINK', ARGV[1] .. id)
  redis.call('UNLINK', ARGV[1] .. id .. ':events')
end
redis.call('UNLINK', KEYS[1])
return found
"""

# KEYS: stream. Answers with the ms since somebody listened to the stream on another router.
LISTENED = """
local at = redis.call('HGET', KEYS[1], 'listened')
if not at then return false end
local clock = redis.call('TIME')
return clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(at)
"""

"""The Lua that runs inside Redis: everything that must look and write in one step.

Versions are fixed-width hexadecimal texts, and Lua compares texts of the same width rightly (its numbers are doubles).
Every script takes many rows: one call costs more than one row.
"""

from __future__ import annotations

from typing import Final

# Every script that writes rows or a position begins with this. ARGV[1] is the server on which its caller has taken the
# store: the run ID of the process and the replication ID, with a colon between; "" for any, also of one of the two. A
# restart changes the first, a promotion the second. What such a server acknowledged before may be lost, and what some
# other one is given will be: the script writes nothing, and gives MOVED. (Redis also takes a new replication ID when
# its first replica comes, and an hour after its last one went. The batch is then done again without need.)
MOVED: Final = b"moved"
_GUARD: Final = """
if ARGV[1] ~= '' then
  local run_id, replication_id = string.match(ARGV[1], '^(.*):(.*)$')
  if run_id ~= '' and not string.find(redis.call('INFO', 'server'), 'run_id:' .. run_id, 1, true)
    or replication_id ~= ''
    and not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true) then
    return 'moved'
  end
end
"""

# KEYS: the markers' hash, then one key per row. ARGV then: the table's field in it, the generation, the tombstones'
# seconds, the pipeline's id, then per row its version and the row, "" for a delete (JSON is never empty).
# An older change still marks the row as seen: its key is in the topic, so it is no ghost.
# Of the same version, the row of a newer generation stays: it may be in another shape.
# A row of another pipeline is as good as none, whatever its version; a writer of another pipeline is turned away.
FOREIGN: Final = b"foreign"
APPLY: Final = (
    _GUARD
    + """
local known = redis.call('HMGET', KEYS[1], ARGV[2], '__pipeline', '__from')
local marker, from = known[1] or '', tonumber(known[3] or '0')
local generation, seconds = ARGV[3], ARGV[4]
if known[2] and known[2] ~= ARGV[5] then return 'foreign' end
for i = 2, #KEYS do
  local key, version, row = KEYS[i], ARGV[i * 2 + 2], ARGV[i * 2 + 3]
  if version >= marker then
    local found = redis.call('HMGET', key, 'version', 'generation')
    local stored = found[1]
    if stored and from > 0 and tonumber(found[2] or '0') < from then
      redis.call('DEL', key)
      stored = false
    end
    if not stored then
      if row ~= '' then
        redis.call('HSET', key, 'row', row, 'version', version, 'generation', generation)
      else
        redis.call('HSET', key, 'version', version, 'generation', generation)
        redis.call('EXPIRE', key, seconds)
      end
    else
      if version > stored or version == stored and tonumber(generation) >= tonumber(found[2] or '0') then
        if row ~= '' then
          redis.call('HSET', key, 'row', row, 'version', version)
          redis.call('PERSIST', key)
        else
          redis.call('HDEL', key, 'row')
          redis.call('HSET', key, 'version', version)
          redis.call('EXPIRE', key, seconds)
        end
      end
      if not found[2] or tonumber(found[2]) < tonumber(generation) then
        redis.call('HSET', key, 'generation', generation)
      end
    end
  end
end
return #KEYS - 1
"""
)

# KEYS: the markers' hash. ARGV then: the table's field, a version, the pipeline's id. The larger version stays.
MARK: Final = (
    _GUARD
    + """
local known = redis.call('HMGET', KEYS[1], ARGV[2], '__pipeline')
local stored = known[1]
if known[2] and known[2] ~= ARGV[4] then return 'foreign' end
if not stored or stored < ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
return 1
"""
)

# Those that follow look at a page of the keys and give the next page's cursor ("0": it was the last one) and how
# many rows were swept. The server finds the keys itself: they need not travel there and back. ARGV of each then: the
# cursor, the keys' pattern, how many keys to look at. (Redis before 7 must be told to replicate what a script has
# written.)
_PAGE: Final = (
    _GUARD
    + """
if redis.replicate_commands then redis.replicate_commands() end
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local swept = 0
"""
)

# ARGV then: the marker's version, the tombstones' seconds. Older rows become tombstones of the marker's version.
TRUNCATE: Final = (
    _PAGE
    + """
for _, key in ipairs(page[2]) do
  local stored = redis.call('HGET', key, 'version')
  if stored and stored < ARGV[5] then
    swept = swept + redis.call('HDEL', key, 'row')
    redis.call('HSET', key, 'version', ARGV[5])
    redis.call('EXPIRE', key, ARGV[6])
  end
end
return {page[1], swept}
"""
)

# ARGV then: the generation, a version, the tombstones' seconds. Rows up to the version that the generation's writers
# have not seen become tombstones under the version they have.
SWEEP: Final = (
    _PAGE
    + """
local generation = tonumber(ARGV[5])
for _, key in ipairs(page[2]) do
  local found = redis.call('HMGET', key, 'version', 'generation')
  if found[1] and found[1] <= ARGV[6] and tonumber(found[2] or '0') < generation then
    if redis.call('HDEL', key, 'row') == 1 then
      redis.call('EXPIRE', key, ARGV[7])
      swept = swept + 1
    end
  end
end
return {page[1], swept}
"""
)

# KEYS: the markers' hash. ARGV: nothing more. Rows that another pipeline wrote go, without a trace:
# their versions mean nothing. An application's own hash under the prefix has no such version.
SWEEP_FOREIGN: Final = (
    _PAGE
    + """
local from = tonumber(redis.call('HGET', KEYS[1], '__from') or '0')
for _, key in ipairs(page[2]) do
  if redis.call('TYPE', key).ok == 'hash' then
    local found = redis.call('HMGET', key, 'version', 'generation')
    local is_row = found[1] and #found[1] == 25 and string.find(found[1], '^%x+%.%x+$')
    if is_row and (tonumber(found[2] or '0') or from) < from then
      swept = swept + redis.call('DEL', key)
    end
  end
end
return {page[1], swept}
"""
)

# KEYS: rows. How many of them are live.
COUNT: Final = """
local live = 0
for i = 1, #KEYS do
  live = live + redis.call('HEXISTS', KEYS[i], 'row')
end
return live
"""

# KEYS: the state, the store's name, the markers' hash. ARGV: name, time, an empty position, the format, the pipeline's
# id, and the id that the serving generation's position has. Gives the new generation's number, or the name of the store
# that this prefix belongs to. Where the rows are another pipeline's, they are from now on those of the generations
# before this one (`__from`), and the markers go, which are as little comparable.
CREATE: Final = """
local name = redis.call('GET', KEYS[2])
if name and name ~= ARGV[1] then return name end
redis.call('SET', KEYS[2], ARGV[1])
local number = redis.call('HINCRBY', KEYS[1], 'last', 1)
redis.call('HSET', KEYS[1], 'format', ARGV[4],
  'generation:' .. number, '{"created_ms":' .. ARGV[2] .. ',"state":"loading"}', 'position:' .. number, ARGV[3])
if ARGV[5] ~= '' then
  if (redis.call('HGET', KEYS[3], '__pipeline') or ARGV[6]) ~= ARGV[5] then
    redis.call('DEL', KEYS[3])
    redis.call('HSET', KEYS[3], '__from', number)
  end
  redis.call('HSET', KEYS[3], '__pipeline', ARGV[5])
end
return number
"""

# KEYS: the state. ARGV then: the generation, the position as it must stand there ("" for any), the new one. Gives "",
# or what is wrong: "moved", "lost", or the position that stands there instead.
SAVE: Final = (
    """
local stored = redis.call('HGET', KEYS[1], 'position:' .. ARGV[2])
if not stored then return 'lost' end
if ARGV[3] ~= '' and stored ~= ARGV[3] then return stored end
"""
    + _GUARD
    + """
redis.call('HSET', KEYS[1], 'position:' .. ARGV[2], ARGV[4])
return ''
"""
)

# KEYS: the state. ARGV: the generation, its new text, 1 to make it serve. 0: it is gone, and must not half come back.
SETTLE: Final = """
if redis.call('HEXISTS', KEYS[1], 'position:' .. ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'generation:' .. ARGV[1], ARGV[2])
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], 'serving', ARGV[1]) end
return 1
"""

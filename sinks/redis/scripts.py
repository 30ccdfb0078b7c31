"""The Lua scripts that run inside Redis: every operation that must read and write atomically.

Versions are fixed-width hexadecimal strings. Lua compares strings of equal width correctly, while its numbers are
doubles and too imprecise. The scripts for rows take many rows per call, because a call costs more than a row.
"""

from __future__ import annotations

from typing import Final

# Every script that writes rows or a position contains this guard. It checks that the server is still the one on which
# the caller took the store.
#
# ARGV[1]: the run ID of the server process and its replication ID, separated by a colon. An empty string, or an empty
# part of it, matches any server.
#
# A restart changes the run ID, and a promotion changes the replication ID. Writes that the server acknowledged before
# may then be lost, and writes to a server that is no longer the primary will be lost. So the script writes nothing and
# returns MOVED. (Redis also changes its replication ID when its first replica connects, and an hour after its last
# replica disconnected. The sync then repeats the batch unnecessarily, which is harmless.)
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

# Writes changes. A smaller version never replaces a larger one.
#
# KEYS: the hash of TRUNCATE markers, then one key per row.
# ARGV after the guard's: the topic (the table's field in that hash), the generation, the lifetime of tombstones in
# seconds, the pipeline's id. Then two per row: its version, and the row or "" for a delete (JSON is never empty).
#
# - A change that is older than the stored row still sets the row's generation. The row's key is in the topic, so the
#   row is not a ghost.
# - At equal versions, a row of a newer generation stays, because it may have a different shape.
# - A row of another pipeline counts as absent, whatever its version.
# - A writer of another pipeline gets FOREIGN, and the script writes nothing.
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

# Records a TRUNCATE marker. The larger version of the stored and the new marker stays.
#
# KEYS: the hash of TRUNCATE markers. ARGV after the guard's: the topic, the marker's version, the pipeline's id.
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

# The common start of the scripts that sweep keys. Each call scans one page of keys on the server, so the keys do not
# cross the network. It returns the cursor of the next page ("0": this was the last page) and how many rows it swept.
#
# ARGV after the guard's: the cursor, the pattern of the keys, how many keys to scan.
#
# `replicate_commands` makes a server before Redis 7 replicate the writes of the script rather than the script itself.
_PAGE: Final = (
    _GUARD
    + """
if redis.replicate_commands then redis.replicate_commands() end
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local swept = 0
"""
)

# Turns rows that are older than a TRUNCATE marker into tombstones with the marker's version.
#
# ARGV after the page's: the marker's version, the lifetime of tombstones in seconds.
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

# Turns ghosts into tombstones. A ghost is a row up to a version that the generation's writers did not touch. The
# tombstone keeps the row's version.
#
# ARGV after the page's: the generation, the version (inclusive), the lifetime of tombstones in seconds.
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

# Deletes rows of another pipeline. They leave no tombstones, because their versions are not comparable. A hash that an
# application keeps under the prefix stays, because it has no field `version` in this format.
#
# KEYS: the hash of TRUNCATE markers. ARGV: only the page's.
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

# Returns how many of the rows are live. KEYS: rows.
COUNT: Final = """
local live = 0
for i = 1, #KEYS do
  live = live + redis.call('HEXISTS', KEYS[i], 'row')
end
return live
"""

# Creates a generation. Returns its number, or the name of the store to which this prefix already belongs.
#
# KEYS: the store's state, the key of the store's name, the hash of TRUNCATE markers.
# ARGV: the store's name, the time in milliseconds, an empty position, the format of the state, the pipeline's id, the
# pipeline id in the serving generation's position.
#
# If the stored rows belong to another pipeline, `__from` is set to the new generation: rows of earlier generations then
# count as absent. The TRUNCATE markers are deleted, because their versions are not comparable either.
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

# Replaces a generation's position. Returns "" on success. Otherwise it writes nothing and returns "lost" (no such
# generation), the stored position (it is not the expected one), or "moved" (see the guard).
#
# KEYS: the store's state. ARGV after the guard's: the generation, the expected position ("" for any), the new position.
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

# Settles a generation, and switches readers to it on request. Returns 1, or 0 if the generation is gone. In that case
# it writes nothing, so that no part of a dropped generation comes back.
#
# KEYS: the store's state. ARGV: the generation, its new description, 1 to make it the serving generation.
SETTLE: Final = """
if redis.call('HEXISTS', KEYS[1], 'position:' .. ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'generation:' .. ARGV[1], ARGV[2])
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], 'serving', ARGV[1]) end
return 1
"""

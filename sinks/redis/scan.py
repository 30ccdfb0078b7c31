"""Reads a table's rows for the audit, in slices and by id, and overwrites rows by force.

Implements `cdc.stores.scan.StoreScan`. SCAN has one cursor for all keys, so it cannot be divided, but it is fast.
Reading the rows takes most of the time. So every slice scans all keys, and reads only its share of the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from zlib import crc32

import redis

from cdc.config.stores import RedisConfig as Settings
from cdc.lsn import Version
from cdc.stores.contract import Generation, StoredRow, TableSchema
from cdc.stores.scan import Forced, ReadSlice, RowScan
from sinks.redis.client import Script, open_redis, translated
from sinks.redis.naming import row_pattern, row_prefix
from sinks.redis.writer import SCAN_KEYS, scan

_IDS_AT_ONCE: Final = 1000
_SAMPLE_ATTEMPTS: Final = 20
_NOBODYS: Final = Version(0, 0)

# Replaces or removes a row, whatever its version. Returns 1, or 0 if the row has changed since the audit read it.
#
# KEYS: the row. ARGV: the version that the audit found, the new version, the row ("" to remove it), the generation.
FORCE: Final = """
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'row', ARGV[3], 'version', ARGV[2], 'generation', ARGV[4])
end
return 1
"""


@dataclass(frozen=True, slots=True)
class RedisSlice:
    """Reads one slice: the keys whose CRC-32 modulo `count` is `number`. Picklable."""

    settings: Settings
    prefix: str
    table: TableSchema
    number: int
    count: int

    def __call__(self) -> Iterator[list[StoredRow]]:
        client = open_redis(self.settings)
        start = len(row_prefix(self.prefix, self.table).encode())
        try:
            for keys in scan(client, self.prefix, self.table):
                mine = [key for key in keys if crc32(key) % self.count == self.number] if self.count > 1 else keys
                yield [row for row in _read(client, mine, start) if row.row is not None]
        finally:
            client.close()


class RedisScan(RowScan):
    """Reads one store's rows for the audit."""

    def __init__(self, name: str, settings: Settings, prefix: str, generation: Generation) -> None:  # noqa: ARG002
        self._settings = settings
        self._prefix = settings.prefix or prefix
        self._generation = generation.number
        self._client = open_redis(settings)

    @contextmanager
    def slices(self, table: TableSchema, count: int) -> Iterator[list[ReadSlice]]:
        """Yield the slices. Redis offers no point-in-time view: each row is in its state at the time it is read."""
        yield [RedisSlice(self._settings, self._prefix, table, number, count) for number in range(count)]

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        before = row_prefix(self._prefix, table)
        found: dict[str, StoredRow] = {}
        for start in range(0, len(ids), _IDS_AT_ONCE):
            keys = [(before + each).encode() for each in ids[start : start + _IDS_AT_ONCE]]
            found.update((row.id, row) for row in _read(self._client, keys, len(before.encode())))
        return found

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """Read rows from a random position of the server's key table.

        The number of SCAN calls is limited, so that many keys of other tables cannot make this slow.
        """
        before, pattern = row_prefix(self._prefix, table), row_pattern(self._prefix, table)
        keys: list[bytes] = []
        cursor = secrets.randbits(48)
        for _ in range(_SAMPLE_ATTEMPTS):
            with translated():
                cursor, found = cast("Any", self._client.scan(cursor, match=pattern, count=SCAN_KEYS))
            keys += found
            if len(keys) >= count or cursor == 0:
                break
        return [row for row in _read(self._client, keys[:count], len(before.encode())) if row.row is not None]

    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        """Replace or remove each row that still has the version that the audit found."""
        before = row_prefix(self._prefix, table)
        force = Script(self._client, FORCE)
        for held, change in forced:
            if held is None:  # an absent key blocks no write in Redis, so there is nothing to force
                continue
            with translated():
                raw: Any = self._client.hget(before + held.id, "version")
            if _version(raw) == held.version:
                found = raw or b""
                force([before + held.id], [found, str(change.version), change.row or b"", self._generation])

    def close(self) -> None:
        self._client.close()


def _read(client: redis.Redis, keys: Sequence[bytes], start: int) -> Iterator[StoredRow]:
    """Yield the rows of these keys. A key of another type than hash yields a row with version 0 and an empty row."""
    with translated(), client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(key, "version", "row")
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    for key, answer in zip(keys, answers, strict=True):
        row_id = key[start:].decode(errors="replace")
        if isinstance(answer, redis.ResponseError):
            yield StoredRow(row_id, _NOBODYS, b"")
        elif isinstance(answer, Exception):
            with translated():
                raise answer
        elif answer[0] is not None or answer[1] is not None:
            yield StoredRow(row_id, _version(answer[0]), answer[1])


def _version(text: bytes | None) -> Version:
    try:
        return _NOBODYS if text is None else Version.parse(text.decode())
    except ValueError:
        return _NOBODYS

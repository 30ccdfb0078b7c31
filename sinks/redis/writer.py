"""Writes rows to Redis; lives in one task. The contract is `cdc.stores.contract.Writer`.

Each call of the script takes a few hundred rows, so the server is never held up for long, and a few calls go out before
the first answer is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import redis

from cdc.config.stores import RedisConfig as Settings
from cdc.lsn import Version
from cdc.stores.contract import Change, PositionLostError, Rejected, TableSchema
from sinks.redis import scripts
from sinks.redis.client import Script, bulk, open_redis, translated
from sinks.redis.naming import markers_key, row_pattern, row_prefix

_ROWS_PER_CALL: Final = 200
_BYTES_PER_CALL: Final = 1_000_000
_CALLS_PER_PIPELINE: Final = 20
SCAN_KEYS: Final = 1000
# A row's version, which is 25 letters, and the row; a delete's is empty.
_ARGUMENTS: Final = b"$25\r\n%b\r\n$%d\r\n%b\r\n"
_DELETE: Final = b"$25\r\n%b\r\n$0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RedisWriterFactory:
    settings: Settings
    prefix: str
    number: int
    pipeline_id: str
    #: The server that the store was taken on; "" for any.
    server: str = ""

    def __call__(self) -> RedisWriter:
        return RedisWriter(self.settings, self.prefix, self.number, self.pipeline_id, self.server)


class RedisWriter:
    def __init__(self, settings: Settings, prefix: str, number: int, pipeline_id: str, server: str) -> None:
        self._prefix = prefix
        self._server = server
        self._generation = str(number).encode()
        self._pipeline_id = pipeline_id.encode()
        self._seconds = str(settings.tombstone_hours * 3600).encode()
        self._client = open_redis(settings)
        self._apply = Script(self._client, scripts.APPLY)

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        """Redis takes every row: nothing is ever rejected."""
        calls = self._calls(table, changes)
        while some := list(islice(calls, _CALLS_PER_PIPELINE)):
            refuse_moved(*self._apply.send(some))
        return []

    def truncate(self, table: TableSchema, version: Version) -> int:
        """The marker first: what comes later and is older stays out. Then SCAN, over all keys of the database."""
        marker = str(version)
        mark = Script(self._client, scripts.MARK)
        refuse_moved(mark([markers_key(self._prefix)], [self._server, table.topic, marker, self._pipeline_id]))
        pattern = row_pattern(self._prefix, table)
        return sweep(self._client, scripts.TRUNCATE, self._server, pattern, [marker, self._seconds])

    def close(self) -> None:
        self._client.close()

    def _calls(self, table: TableSchema, changes: Sequence[Change]) -> Iterator[bytes]:
        """As they go over the wire. Hot: redis-py would look at every value on its own."""
        before = row_prefix(self._prefix, table).encode()
        before_bytes = len(before)
        markers = bulk(markers_key(self._prefix).encode())
        head = (self._server.encode(), table.topic.encode(), self._generation, self._seconds, self._pipeline_id)
        first = b"".join(map(bulk, head))
        stamps: dict[Version, bytes] = {}  # rows of a copy share theirs
        keys, arguments, size = [markers], [first], 0
        for row_id, _, version, row in changes:
            stamp = stamps.get(version)
            if stamp is None:
                stamp = stamps[version] = str(version).encode()
            end = row_id.encode()
            keys.append(b"$%d\r\n%b%b\r\n" % (before_bytes + len(end), before, end))
            arguments.append(_ARGUMENTS % (stamp, len(row), row) if row is not None else _DELETE % stamp)
            size += len(arguments[-1])
            if len(keys) > _ROWS_PER_CALL or size > _BYTES_PER_CALL:
                yield self._call(keys, arguments)
                keys, arguments, size = [markers], [first], 0
        if len(keys) > 1:
            yield self._call(keys, arguments)

    def _call(self, keys: list[bytes], arguments: list[bytes]) -> bytes:
        """`arguments`: five for all, then two for each row."""
        head = self._apply.head(len(keys), 5 + 2 * (len(arguments) - 1))
        return b"".join([head, *keys, *arguments])


def sweep(
    client: redis.Redis,
    script: str,
    server: str,
    pattern: str,
    arguments: Sequence[str | bytes | int],
    keys: Sequence[str] = (),
) -> int:
    """All pages of one of the scripts that sweep; how many rows were swept."""
    page, cursor, swept = Script(client, script), b"", 0
    while cursor != b"0":
        answer = page(keys, [server, cursor or b"0", pattern, SCAN_KEYS, *arguments])
        refuse_moved(answer)
        cursor, found = answer
        swept += int(found)
    return swept


def refuse_moved(*answers: object) -> None:
    """Raise if one of these scripts has written nothing: it found another server, one that was promoted since, or the
    rows of another pipeline."""
    if scripts.FOREIGN in answers:
        raise PositionLostError("The store holds the rows of another pipeline.")
    if scripts.MOVED in answers:
        raise PositionLostError(
            "Redis was restarted, or failed over: what was acknowledged before may be lost, and is written again."
        )


def scan(client: redis.Redis, prefix: str, table: TableSchema) -> Iterator[list[bytes]]:
    """The table's keys, some maybe twice: SCAN never blocks the server, and never misses a key that stays."""
    cursor, pattern = 0, row_pattern(prefix, table)
    while True:
        with translated():
            cursor, keys = cast("Any", client.scan(cursor, match=pattern, count=SCAN_KEYS))
        if keys:
            yield keys
        if cursor == 0:
            return

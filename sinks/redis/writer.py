"""Writes rows to Redis within one task. Implements `cdc.stores.contract.Writer`.

Each script call carries at most a few hundred rows, so that no call blocks the server for long. The writer sends
several calls before it reads the first reply.
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
# A row's arguments in wire format: its version, which has 25 characters, and the row. A delete has an empty row.
_ARGUMENTS: Final = b"$25\r\n%b\r\n$%d\r\n%b\r\n"
_DELETE: Final = b"$25\r\n%b\r\n$0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RedisWriterFactory:
    """Creates a `RedisWriter` in each task. Picklable."""

    settings: Settings
    prefix: str
    number: int
    pipeline_id: str
    #: The server on which the driver took the store. "": any server.
    server: str = ""

    def __call__(self) -> RedisWriter:
        return RedisWriter(self.settings, self.prefix, self.number, self.pipeline_id, self.server)


class RedisWriter:
    """Writes the rows of one generation."""

    def __init__(self, settings: Settings, prefix: str, number: int, pipeline_id: str, server: str) -> None:
        self._prefix = prefix
        self._server = server
        self._generation = str(number).encode()
        self._pipeline_id = pipeline_id.encode()
        self._seconds = str(settings.tombstone_hours * 3600).encode()
        self._client = open_redis(settings)
        self._apply = Script(self._client, scripts.APPLY)

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        """Write all changes. Redis accepts every row, so the result is always empty."""
        calls = self._calls(table, changes)
        while some := list(islice(calls, _CALLS_PER_PIPELINE)):
            refuse_moved(*self._apply.send(some))
        return []

    def truncate(self, table: TableSchema, version: Version) -> int:
        """Record the TRUNCATE marker, then sweep the table's rows with SCAN over all keys of the database.

        The marker comes first, so that older rows that arrive later are ignored.
        """
        marker = str(version)
        mark = Script(self._client, scripts.MARK)
        refuse_moved(mark([markers_key(self._prefix)], [self._server, table.topic, marker, self._pipeline_id]))
        pattern = row_pattern(self._prefix, table)
        return sweep(self._client, scripts.TRUNCATE, self._server, pattern, [marker, self._seconds])

    def close(self) -> None:
        self._client.close()

    def _calls(self, table: TableSchema, changes: Sequence[Change]) -> Iterator[bytes]:
        """Yield the script calls in wire format. A hot loop: redis-py would encode every value separately."""
        before = row_prefix(self._prefix, table).encode()
        before_bytes = len(before)
        markers = bulk(markers_key(self._prefix).encode())
        head = (self._server.encode(), table.topic.encode(), self._generation, self._seconds, self._pipeline_id)
        first = b"".join(map(bulk, head))
        stamps: dict[Version, bytes] = {}  # rows of a snapshot share one version
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
        """Join one call. The first item of `arguments` holds five encoded arguments, each later item a row's two."""
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
    """Run a sweeping script over all pages of keys, and return how many rows it swept."""
    page, cursor, swept = Script(client, script), b"", 0
    while cursor != b"0":
        answer = page(keys, [server, cursor or b"0", pattern, SCAN_KEYS, *arguments])
        refuse_moved(answer)
        cursor, found = answer
        swept += int(found)
    return swept


def refuse_moved(*answers: object) -> None:
    """Raise PositionLostError if a script's result says that the script wrote nothing.

    The script then found another server, a restarted or promoted server, or rows of another pipeline.
    """
    if scripts.FOREIGN in answers:
        raise PositionLostError("The store holds rows of another pipeline.")
    if scripts.MOVED in answers:
        raise PositionLostError(
            "Redis was restarted or failed over, and may have lost acknowledged writes. The sync writes them again."
        )


def scan(client: redis.Redis, prefix: str, table: TableSchema) -> Iterator[list[bytes]]:
    """Yield the table's keys in lists. A key may occur twice.

    SCAN does not block the server, and does not miss a key that exists during the whole scan.
    """
    cursor, pattern = 0, row_pattern(prefix, table)
    while True:
        with translated():
            cursor, keys = cast("Any", client.scan(cursor, match=pattern, count=SCAN_KEYS))
        if keys:
            yield keys
        if cursor == 0:
            return

"""An incremental snapshot of some keys: publishes the source's present rows, or deletes for keys without a row.

It uses the same watermarks as every incremental snapshot, but no Spark. The snapshot log has no record of a plan, only
of the chunks, so that capture accepts their watermarks. It takes seconds, and the operator runs it again if it dies.
Capture must be running, since it publishes the rows with a new version.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence

import orjson
import psycopg
from psycopg import sql

from cdc.config import Config
from cdc.errors import RefusedError, TransientError, UsageError
from cdc.pgoutput.messages import RelationColumn
from cdc.postgres.connection import connect, explain
from cdc.snapshot.incremental.announced import announce
from cdc.snapshot.incremental.chunk import IncrementalChunkTask, read_incremental_chunk
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import BlockRange, ChunkState
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.tables.event_settings import settings_mismatch_error

_KEYS_AT_ONCE = 5000
_POLL_SECONDS = 0.1
_MOST_ATTEMPTS = 20


def snapshot_keys(config: Config, oid: str, keys: Collection[bytes], *, timeout_seconds: float = 60.0) -> int:
    """Publish the present rows of these keys and return how many records capture published.

    There are fewer records than keys if capture had newer changes of some keys.
    """
    wanted = sorted(keys)
    snapshot_id = f"keys-{uuid.uuid4().hex[:8]}"
    piece = BlockRange(table=oid, relation=int(oid), first_block=0, end_block=0)
    starts = range(0, len(wanted), _KEYS_AT_ONCE)
    chunks = [
        ChunkState(copy=snapshot_id, number=number, pieces=[piece], size_bytes=0) for number in range(len(starts))
    ]
    published = 0
    try:
        announce(config.kafka, chunks)
        with SnapshotLog(config.kafka) as log:
            for chunk, start in zip(chunks, starts, strict=True):
                published += _copy(config, oid, chunk, wanted[start : start + _KEYS_AT_ONCE], log, timeout_seconds)
    except psycopg.Error as error:
        raise TransientError(f"Postgres: {explain(error)}") from error
    return published


def _copy(
    config: Config, oid: str, chunk: ChunkState, keys: Sequence[bytes], log: SnapshotLog, timeout_seconds: float
) -> int:
    reason = ""
    for _ in range(_MOST_ATTEMPTS):
        attempt = time.time_ns() // 1000
        table = _described(config, oid)
        read_incremental_chunk(
            IncrementalChunkTask(config=config, chunk=chunk, attempt=attempt, tables={oid: table}, keys=tuple(keys))
        )
        found = _outcome(log, chunk, attempt, timeout_seconds)
        if found.done:
            return found.rows
        if found.refused:
            raise settings_mismatch_error(found.repeat)
        reason = found.repeat
    raise TransientError(f"Capture rejected every read of {len(keys)} keys. The last reason: {reason}.")


def _outcome(log: SnapshotLog, chunk: ChunkState, attempt: int, timeout_seconds: float) -> ChunkState:
    give_up_at = time.monotonic() + timeout_seconds
    while time.monotonic() < give_up_at:
        found = log.refresh().chunks.get(chunk.copy, {}).get(chunk.number)
        if found is not None and found.attempt == attempt:
            return found
        time.sleep(_POLL_SECONDS)
    raise TransientError(
        f"Capture did not publish the keys within {timeout_seconds:.0f} seconds.",
        remedy="Check that capture is running: tailrace capture --status",
    )


def _described(config: Config, oid: str) -> DescribedTable:
    with connect(config.source.conninfo(), application_name="tailrace copy") as connection:
        table = describe_tables(connection, config, [oid]).get(oid)
    if table is None:
        raise RefusedError("The table no longer exists in the source, or has no primary key.")
    return table


def record_keys(config: Config, oid: str, given: Collection[str]) -> list[bytes]:
    """Convert keys from the command line to record keys.

    A key is a value, or a JSON array of values if the key has several columns, as in a store's ids.
    """
    table = _described(config, oid)
    relation = table.table(table.relation)
    found = []
    for text in dict.fromkeys(given):
        values = [text] if len(table.shape.key) == 1 else _values(text)
        if len(values) != len(table.shape.key):
            raise UsageError(
                f"A key of {table.shape} has {len(table.shape.key)} columns ({', '.join(table.shape.key)}).",
                remedy='Give each as a JSON array of texts: ["700","1"]',
            )
        columns: list[bytes | None] = [None] * len(table.relation.columns)
        spelled = _spelled(config, [table.relation.columns[index] for index in relation.key_indexes], values)
        for index, value in zip(relation.key_indexes, spelled, strict=True):
            columns[index] = value
        found.append(relation.encode_key(columns))
    return found


def _spelled(config: Config, columns: Sequence[RelationColumn], values: Sequence[str]) -> list[bytes]:
    """Return the values as Postgres writes them, for example `1` for `01`."""
    with connect(config.source.conninfo(), application_name="tailrace copy") as connection:
        spelled = []
        for column, value in zip(columns, values, strict=True):
            row = connection.execute("select format_type(%s, %s)", [column.type_oid, column.type_modifier]).fetchone()
            assert row is not None  # noqa: S101  # a select without FROM has one row
            try:
                query = sql.SQL("select {}::{}").format(sql.Literal(value), sql.SQL(row[0]))
                result = connection.execute(query).pgresult
            except psycopg.Error as error:
                raise UsageError(
                    f"Key column {column.name} cannot have the value {value!r}: {explain(error)}"
                ) from None
            assert result is not None  # noqa: S101  # as above
            spelled.append(result.get_value(0, 0) or b"")
    return spelled


def _values(text: str) -> list[str]:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []
    return [str(value) for value in values] if isinstance(values, list) else []

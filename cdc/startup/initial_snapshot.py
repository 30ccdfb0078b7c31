"""Capture's part of the initial snapshot: keeps the exported snapshot open, waits, and evaluates the result.

Meanwhile capture publishes nothing. A Spark job (`tailrace snapshot`) copies the rows. The job writes the record of
each snapshot chunk in the same Kafka transaction as the chunk's rows. So these records alone show which chunks are
finished.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import sql

from cdc.clock import now_ms
from cdc.config import Config, KafkaConfig
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.postgres import catalog
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationStream
from cdc.publishing.publisher import Publisher
from cdc.snapshot.chunk_plan import RelationSize, read_sizes
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import SnapshotState, chunk_transactional_id, driver_transactional_id
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import TableState

log = get_logger("initial_snapshot")

_POLL_SECONDS = 0.5
_FENCE_SECONDS = 30.0
_FENCES_AT_ONCE = 8
_INTERRUPTED = "the initial snapshot was interrupted"
# The slot keeps all WAL from the consistent point on. Capture warns at each of these shares of max_slot_wal_keep_size.
_WAL_WARNINGS = (0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class InitialSnapshotOutcome:
    """The result of an initial snapshot.

    `missing`: by oid, the tables that the snapshot lacks, and why. They need an incremental snapshot.
    `is_complete`: the job planned the snapshot and finished every chunk.
    `end_offsets`: by topic, the highest end offsets of its partitions in the records of the finished chunks.
    """

    copy: SnapshotState
    missing: dict[str, str]
    rows: int
    is_complete: bool
    end_offsets: dict[str, list[int]] = field(default_factory=dict)


def opened(snapshot: str, point: LSN, base: int, settings: Mapping[str, str]) -> SnapshotState:
    """Return the record of a new initial snapshot.

    `settings`: by oid, the settings digest of each table. A job with other settings must not write a row.
    """
    return SnapshotState(
        id=uuid.uuid4().hex[:12],
        kind="first",
        state="open",
        tables=sorted(settings),
        settings=dict(settings),
        snapshot=snapshot,
        point=int(point),
        base=base,
        started_ms=now_ms(),
    )


class SnapshotTables(NamedTuple):
    """The tables, by oid, as the exported snapshot shows them, so that capture detects every later change of a table.

    `filled`: the tables that may have rows.
    """

    states: dict[str, TableState]
    described: dict[str, DescribedTable]
    filled: set[str]


def read_tables_in_snapshot(config: Config, snapshot: str, oids: Sequence[str]) -> SnapshotTables:
    """Read the tables' definitions in the exported snapshot."""
    with connect(config.source.conninfo()) as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
        states = read_catalog_states(connection, oids, prefix=config.kafka.prefix)
        described = describe_tables(connection, config, oids)
        found = filled(connection, described)
    return SnapshotTables(states, described, found)


def filled(connection: psycopg.Connection, described: Mapping[str, DescribedTable]) -> set[str]:
    """Return the oids of the tables that may have rows."""
    sizes = read_sizes(connection, described.values())
    return {oid for oid, table in described.items() if _may_have_rows(table, sizes)}


def _may_have_rows(table: DescribedTable, sizes: Mapping[int, RelationSize]) -> bool:
    """Whether the table may have rows, judged by the size of its files, which needs no lock.

    A table that was rewritten after the snapshot appears empty in it although it has rows, so it counts as filled.
    """
    found = [(leaf.storage, sizes.get(leaf.relation.oid)) for leaf in table.leaves]
    return any(size is None or size.heap_bytes > 0 or size.storage != storage for storage, size in found)


def wait_for_snapshot_job(
    config: Config,
    copy: SnapshotState,
    *,
    stream: ReplicationStream,
    connection: psycopg.Connection,
    stop: threading.Event,
) -> InitialSnapshotOutcome | None:
    """Wait for the snapshot job and return the result. None: `stop` was set.

    The exported snapshot exists as long as `stream` is open. Kafka may be unavailable for a while.
    """
    log.info(
        "waiting_for_initial_snapshot",
        copy=copy.id,
        consistent_point=str(LSN(copy.point)),
        reason="capture publishes changes only after the existing rows",
        remedy="Run: tailrace snapshot (`tailrace run` runs it automatically)",
    )
    watch = _WalWatch(config.source.slot, LSN(copy.point), connection)
    with SnapshotLog(config.kafka) as copies:
        failed = False
        while not stop.wait(_POLL_SECONDS):
            stream.check_idle()
            watch.poll()
            try:
                copies.refresh()
                failed = False
            except TransientError as error:
                if not failed:
                    log.warning("kafka_unavailable", reason=str(error), effect="the initial snapshot waits")
                failed = True
                continue
            present = copies.copies.get(copy.id, copy)
            if copies.is_complete(present):
                return _judged(copies, present)
    log.warning("initial_snapshot_interrupted", reason="capture stops; tables with unfinished chunks become incomplete")
    return None


def interrupted(config: Config, snapshot_id: str) -> InitialSnapshotOutcome:
    """Abandon the initial snapshot of a capture that died, and return its result.

    The exported snapshot ended with that capture. Finished chunks stay. After this, no task can finish another chunk.

    The order matters. First, this process fences the job's driver and marks the snapshot as abandoned, under the
    driver's transactional id. The driver can then plan no more chunks. (If the driver fences this process instead, the
    start fails and capture retries.) Then this process fences the producers of the unfinished chunks. A task that
    fences its own producer after that finds the snapshot abandoned. A task that did so before that cannot commit. If
    this process dies in between, the next start does the same again, with the same result.
    """
    kafka, slot = config.kafka, config.source.slot
    driver = _producer(kafka, driver_transactional_id(kafka.prefix, slot))
    driver.fence(_FENCE_SECONDS)
    with SnapshotLog(kafka) as copies:
        copy = copies.refresh().copies.get(snapshot_id)
        if copy is None:
            raise TransientError(f"Snapshot {snapshot_id} has no record on {kafka.prefix}.__copies.")
        if copy.state in ("open", "planned"):
            given_up = msgspec.structs.replace(copy, state="abandoned", ended_ms=now_ms(), reason=_INTERRUPTED)
            driver.send(control_topic(kafka.prefix, Control.COPIES), given_up.key, given_up.encode(), [])
            driver.commit(_FENCE_SECONDS)
        unfinished = [
            chunk_transactional_id(kafka.prefix, slot, snapshot_id, chunk.number) for chunk in copies.unfinished(copy)
        ]
        if unfinished:
            log.info("fencing_chunks", copy=snapshot_id, chunks=len(unfinished))
        with ThreadPoolExecutor(_FENCES_AT_ONCE) as pool:
            list(pool.map(lambda name: cut_off(kafka, name), unfinished))
        return _judged(copies.refresh_to_end(), copy)


def ended(outcome: InitialSnapshotOutcome) -> SnapshotState:
    """Return the final record of the snapshot."""
    return msgspec.structs.replace(
        outcome.copy,
        state="complete" if outcome.is_complete else "abandoned",
        ended_ms=now_ms(),
        reason="; ".join(sorted(set(outcome.missing.values()))),
    )


def _judged(copies: SnapshotLog, copy: SnapshotState) -> InitialSnapshotOutcome:
    chunks = copies.chunks.get(copy.id, {}).values()
    missing: dict[str, str] = {}
    if not copy.is_planned:
        missing = dict.fromkeys(copy.tables, _INTERRUPTED)
    for chunk in chunks:
        missing |= chunk.left_out
        if not chunk.done:
            missing |= dict.fromkeys((piece.table for piece in chunk.pieces), _INTERRUPTED)
    rows = sum(chunk.rows for chunk in chunks)
    is_complete = copy.is_planned and not copies.unfinished(copy)
    ends = _furthest(chunk.end_offsets for chunk in chunks if chunk.done)
    return InitialSnapshotOutcome(copy, missing, rows=rows, is_complete=is_complete, end_offsets=ends)


def _furthest(found: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    furthest: dict[str, list[int]] = {}
    for ends in found:
        for topic, offsets in ends.items():
            furthest[topic] = [max(pair) for pair in zip_longest(furthest.get(topic, ()), offsets, fillvalue=0)]
    return furthest


def cut_off(kafka: KafkaConfig, transactional_id: str) -> None:
    """Fence the producer with this transactional id: it can write no more."""
    producer = _producer(kafka, transactional_id)
    producer.fence(_FENCE_SECONDS)
    producer.abandon()


def _producer(kafka: KafkaConfig, transactional_id: str) -> Publisher:
    return Publisher(
        kafka.client_options(),
        transactional_id=transactional_id,
        transaction_timeout_seconds=60,
        max_message_bytes=kafka.max_message_bytes,
        parked_topic=control_topic(kafka.prefix, Control.PARKED),
    )


class _WalWatch:
    """Warns before the server removes WAL that the slot needs, and raises RefusedError once it has removed it."""

    def __init__(self, slot: str, point: LSN, connection: psycopg.Connection) -> None:
        self._slot = slot
        self._point = point
        self._connection = connection
        self._next_poll = 0.0
        self._remaining_warnings = list(_WAL_WARNINGS)

    def poll(self) -> None:
        if time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + 5
        slot = catalog.slot(self._connection, self._slot)
        if slot is None:
            raise continuity.missing_slot(self._slot, self._point)
        continuity.check_valid(slot, name=self._slot)
        held, left = catalog.wal_held(self._connection, self._slot)
        if left is None:
            return
        used = held / max(1, held + left)
        if self._remaining_warnings and used >= self._remaining_warnings[0]:
            self._remaining_warnings = [share for share in self._remaining_warnings if share > used]
            log.warning(
                "slot_nears_its_limit",
                held_bytes=held,
                left_bytes=left,
                reason="the slot keeps all WAL until the initial snapshot is complete",
                remedy="Raise max_slot_wal_keep_size (a reload is enough), or [snapshot] connections to read faster.",
            )

"""The work of a Spark task on its share of a batch: reduce it to the last change per key, write it, park rejected rows.

A task returns a few small rows. It returns errors in such rows too (`task_errors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from cdc.errors import TailraceError
from cdc.lsn import Version
from cdc.stores.contract import TableSchema, Writer, WriterFactory
from spark_jobs.shape.shaped_rows import FailedRow, RowShape, shaped_row
from spark_jobs.tasks.latest_per_key import LastChange, Record, Reduction, changes_of
from spark_jobs.tasks.parking import ParkedRow, Parking
from spark_jobs.tasks.row_counts import packed
from spark_jobs.tasks.task_errors import packed_error

#: A row that a task returns: counts of a topic ("events"), a marker, an error, or keys of a group if requested.
Answer = dict[str, Any]
ANSWER: Final = (
    "kind string, topic string, events long, written long, deleted long, parked long, stamp string, grp int,"
    " data binary"
)
#: Local property of a Spark job: the TRUNCATE markers whose rows have been deleted from the store, as `topic=version`,
#: separated by commas.
MARKERS_PROPERTY: Final = "tailrace.markers"


@dataclass(slots=True)
class Count:
    """How many events a batch had, and how many rows were written, deleted and parked."""

    events: int = 0
    written: int = 0
    deleted: int = 0
    parked: int = 0

    def add(self, other: Count) -> None:
        """Add the other counts to these."""
        self.events += other.events
        self.written += other.written
        self.deleted += other.deleted
        self.parked += other.parked


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """Everything that a task needs, picklable. It holds secrets, so pass it only to tasks.

    `id` identifies the generation and the session that writers are bound to. A worker process caches writers by it,
    from task to task.
    """

    id: str
    store: str
    tables: Mapping[str, TableSchema]
    writer_factory: WriterFactory
    kafka_options: dict[str, str] = field(repr=False)
    parked_topic: str
    #: By topic: the shapes of tables whose rows the store does not hold unchanged.
    shapes: Mapping[str, RowShape] = field(default_factory=dict)
    slice_bytes: int = 16_000_000
    #: If not 0, tasks also return keys, in so many groups. A bootstrap counts from them the rows that the store must
    #: have.
    key_groups: int = 0
    #: Write rows after a TRUNCATE whose older rows are still in the store. (A bootstrap deletes them when everything
    #: is written.)
    ahead_of_markers: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the batches, as the function of `mapInArrow`.

        Columns: topic, partition, offset, key, value, stamp; also `shaped` if there are shapes.
        """
        for answer in self.answers(map(_records, batches), _markers()):
            yield _as_batch(answer)

    def truncate(self, markers: Mapping[str, bytes]) -> dict[str, int]:
        """Delete the rows below these TRUNCATE markers. Returns how many rows, by topic. Runs in the driver."""
        writer = self.writer_factory()
        try:
            return {
                topic: writer.truncate(self.tables[topic], Version.parse(version_bytes.decode()))
                for topic, version_bytes in markers.items()
            }
        finally:
            writer.close()

    def answers(self, batches: Iterable[Iterable[Record]], markers: Mapping[str, bytes]) -> Iterator[Answer]:
        """Apply all batches and yield the task's result rows.

        `markers` are the TRUNCATEs whose rows have been deleted from the store.
        """
        task = _ApplyTask(self, markers)
        try:
            for batch in batches:
                task.reduction.add(batch)
                if task.reduction.size_bytes >= self.slice_bytes:
                    yield from task.flush()
            yield from task.flush()
            yield from task.finish()
            yield from task.summary()
        except TailraceError as error:
            task.give_up()
            _forget(self.id)
            yield {"kind": "error", "data": packed_error(error)}


class _ApplyTask:
    def __init__(self, applying: ApplySettings, markers: Mapping[str, bytes]) -> None:
        self.applying = applying
        self.reduction = Reduction(markers, leave_out_dead=applying.ahead_of_markers)
        self.counts: dict[str, Count] = {}
        self._writer_id = f"{applying.id} {sorted(markers.items())}"
        self._under_way: Future[list[Answer]] | None = None

    def flush(self) -> Iterator[Answer]:
        """Wait for the previous write, then start to write the collected rows. The task reads on meanwhile."""
        # The rows of a topic with a new TRUNCATE wait until the driver has deleted the older ones.
        new_markers = self.reduction.new_markers
        taken = [each for each in self.reduction.take() if each[0] not in new_markers or self.applying.ahead_of_markers]
        yield from self.finish()
        if taken:
            self._under_way = _sender().submit(self._write, taken)

    def finish(self) -> Iterator[Answer]:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            yield from under_way.result()

    def give_up(self) -> None:
        """Wait for a running write. The task writes nothing after this returns."""
        if self._under_way is not None:
            wait([self._under_way])

    def _write(self, taken: list[tuple[str, dict[bytes, LastChange]]]) -> list[Answer]:
        """Write the rows and return the keys' result rows. Runs in the sender thread."""
        answers: list[Answer] = []
        for topic, last in taken:
            held = self._shaped(topic, last)
            self._apply(topic, held)
            if self.applying.key_groups:
                answers += _of_keys(topic, held, self.applying.key_groups)
        return answers

    def summary(self) -> Iterator[Answer]:
        for topic, events in self.reduction.events.items():
            self.counts.setdefault(topic, Count()).events += events
        for topic, count in self.counts.items():
            yield {
                "kind": "events",
                "topic": topic,
                "events": count.events,
                "written": count.written,
                "deleted": count.deleted,
                "parked": count.parked,
            }
        for topic, version_bytes in self.reduction.new_markers.items():
            yield {"kind": "marker", "topic": topic, "stamp": version_bytes.decode()}

    def _shaped(self, topic: str, held: dict[bytes, LastChange]) -> dict[bytes, LastChange]:
        """Return the rows in the store's shape. A row that the shape excludes becomes a delete.

        Rows whose shape fails are parked and not returned.
        """
        shape = self.applying.shapes.get(topic)
        if shape is None:
            return held
        found: dict[bytes, LastChange] = {}
        failed: list[tuple[bytes, str]] = []
        for key, last in held.items():
            if last.row is None:
                found[key] = last
                continue
            row = shaped_row(shape, last.row, last.shaped)
            if isinstance(row, FailedRow):
                failed.append((key, row.reason))
            else:
                found[key] = last._replace(row=row)
        if failed:
            self.counts.setdefault(topic, Count()).add(Count(0, 0, 0, len(failed)))
            self._park(topic, held, failed)
        return found

    def _apply(self, topic: str, held: dict[bytes, LastChange]) -> None:
        if not held:
            return
        table = self.applying.tables[topic]
        changes = changes_of(held, one_column=len(table.key) == 1)
        rejected = _writer(self._writer_id, self.applying).apply(table, changes)
        deleted = sum([change.row is None for change in changes])
        written = len(changes) - deleted - len(rejected)
        self.counts.setdefault(topic, Count()).add(Count(0, written, deleted, len(rejected)))
        if rejected:
            self._park(topic, held, [(each.change.key, each.reason) for each in rejected])

    def _park(self, topic: str, held: dict[bytes, LastChange], rejected: list[tuple[bytes, str]]) -> None:
        parking = _parking(self.applying)
        parking.park(
            ParkedRow(
                store=self.applying.store,
                topic=topic,
                partition=held[key].partition,
                offset=held[key].offset,
                key=key,
                version=held[key].version_bytes.decode(),
                reason=reason,
            )
            for key, reason in rejected
        )


# -- cached per worker process --------------------------------------------------------------------------------------

_senders: list[ThreadPoolExecutor] = []
_writers: dict[str, Writer] = {}
_parkings: dict[str, Parking] = {}
_KEPT_WRITERS: Final = 16


def _sender() -> ThreadPoolExecutor:
    """Return the executor that writes. It has one thread, so writes keep their order."""
    if not _senders:
        _senders.append(ThreadPoolExecutor(1, thread_name_prefix="tailrace-sender"))
    return _senders[0]


def _writer(key: str, applying: ApplySettings) -> Writer:
    writer = _writers.get(key)
    if writer is None:
        while len(_writers) >= _KEPT_WRITERS:
            _writers.pop(next(iter(_writers))).close()
        writer = _writers[key] = applying.writer_factory()
    return writer


def _forget(applying_id: str) -> None:
    """Close the cached writers after an error: a new connection may succeed."""
    for key in [key for key in _writers if key.startswith(applying_id)]:
        _writers.pop(key).close()


def _parking(applying: ApplySettings) -> Parking:
    parking = _parkings.get(applying.parked_topic)
    if parking is None:
        parking = _parkings[applying.parked_topic] = Parking(applying.kafka_options, applying.parked_topic)
    return parking


# -- conversion to and from Spark -----------------------------------------------------------------------------------


def markers_text(markers: Mapping[str, bytes]) -> str:
    """Return the value of `MARKERS_PROPERTY`."""
    return ",".join(f"{topic}={version_bytes.decode()}" for topic, version_bytes in markers.items())


def _markers() -> dict[str, bytes]:
    context = TaskContext.get()
    text = context.getLocalProperty(MARKERS_PROPERTY) if context is not None else None
    pairs = (each.partition("=") for each in (text or "").split(",") if each)
    return {topic: version.encode() for topic, _, version in pairs}


def _records(batch: pa.RecordBatch) -> Iterable[Record]:
    names = ("topic", "partition", "offset", "key", "value", "stamp")
    columns = [batch.column(name).to_pylist() for name in names]
    shaped = batch.column("shaped").to_pylist() if "shaped" in batch.schema.names else repeat(None)
    return zip(*columns, shaped, strict=False)


def _of_keys(topic: str, held: dict[bytes, LastChange], groups: int) -> Iterator[Answer]:
    states = held.values()
    for group, data in packed(
        held,
        [state.partition for state in states],
        [state.offset for state in states],
        [state.version_bytes for state in states],
        [state.row is not None for state in states],
        groups,
    ):
        yield {"kind": "keys", "topic": topic, "grp": group, "data": data}


def _as_batch(answer: Answer) -> pa.RecordBatch:
    kinds = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
    columns = [column.split() for column in ANSWER.split(",")]
    arrays = [pa.array([answer.get(name)], kinds[kind]) for name, kind in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])

"""One sync session of a store: read from its position, batch by batch, until an error or a change ends the session.

The position in the store is authoritative. The session compares it with the position that it wrote last, before each
batch and about every second between batches. If another owner has taken the store, this sync ends for good. Any other
difference ends the session, and the next session starts from the position that the store has then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from cdc.config import Config
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.stores.contract import (
    Fit,
    Generation,
    Position,
    PositionLostError,
    Store,
    caught_up_at,
    position_changed_error,
)
from spark_jobs.shape.store_tables import StoreTables, chosen_tables
from spark_jobs.sync.delete_retention import DeleteRetention
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.tasks.task_results import Answers
from spark_jobs.writing.contract import BatchApplier, BatchReading, Offsets, StoreBatch

# When heartbeats have moved the LSN, the driver saves an idle store's position, at most this often.
_IDLE_SAVE_SECONDS = 0.5
_REAP_SECONDS = 600.0


class SyncSession:
    """The driver's side of syncing one generation of one store. One thread at a time may use it."""

    def __init__(
        self,
        *,
        name: str,
        config: Config,
        store: Store,
        generation: Generation,
        position: Position,
        follower: ProgressFollower,
        store_tables: StoreTables,
        applying: BatchApplier,
        reading: BatchReading,
        retention_ms: int,
        end_offsets: Callable[[], Offsets],
        check_partitions: Callable[[], None],
    ) -> None:
        """`check_partitions` raises if a topic has partitions that the position does not have."""
        self._name = name
        self._config = config
        self._store = store
        self._follower = follower
        self._store_tables = store_tables
        self._applying = applying
        self._reading = reading
        self._check_partitions = check_partitions
        self._spark = store_tables.spark
        self._retention = DeleteRetention(
            name,
            caught_up_ms=position.caught_up_broker_ms,
            retention_ms=retention_ms,
            now_ms=follower.broker_ms,
            ends=end_offsets,
        )
        self._markers: dict[str, bytes] = {}
        self._goal = follower.newest()
        self._saved_at = 0.0
        self._reap_at = time.monotonic() + _REAP_SECONDS
        self._log = get_logger("sync").bind(store=name)
        self.generation = generation
        self.tables = store_tables.schemas
        self.position = position
        self.saved: Position | None = None

    def begin(self) -> None:
        """Create what the store needs for every table, and save the position that this session starts from."""
        for table in self.tables.values():
            if self._store.ensure_table(self.generation, table) is Fit.NEEDS_GENERATION:
                self._log.warning("table_needs_generation", table=str(table), remedy=f"tailrace bootstrap {self._name}")
        self._save(self.position)

    def batch(self, start: Offsets, ends: Offsets) -> None:
        """Apply the records from `start` up to `ends`, then save the position `ends`."""
        began = time.monotonic()
        self.compare()
        self._follower.catch_up()
        self._compare_tables()
        result = self._run(self._reading.batch(start, ends))
        touched = [self.tables[topic] for topic in result.counts]
        self._store.publish(self.generation, touched)
        self._save(self._moved(ends))
        total = result.total()
        self._log.info(
            "batch_applied",
            events=total.events,
            written=total.written,
            deleted=total.deleted,
            parked=total.parked,
            lsn=str(LSN(self.position.lsn)),
            milliseconds=round((time.monotonic() - began) * 1000),
        )

    def between_batches(self) -> None:
        """Check the store and the tables, and let heartbeats advance the LSN of an idle store."""
        self._compare_tables()
        if time.monotonic() - self._saved_at < _IDLE_SAVE_SECONDS:
            return
        self.compare()
        moved = self._moved({topic: place.next_offsets for topic, place in self.position.topics.items()})
        if moved != self.position:
            self._save(moved)
        else:
            self._saved_at = time.monotonic()
        self._reap()

    def compare(self) -> None:
        """Raise if the position in the store is not the one that this driver saved last."""
        found = self._store.position(self.generation)
        if found is None:
            raise PositionLostError("The store has lost its position.")
        if found != self.saved:
            raise position_changed_error(found, self.saved or found)

    def _compare_tables(self) -> None:
        """Raise if the tables, their topics or the pipeline are not those that this session started with."""
        known = self._follower.tables()
        settings = self._config.stores[self._name]
        if chosen_tables(settings, known, self.position) != self._store_tables.source:
            raise TablesChangedError("The set of tables, or the columns of a table, have changed.")
        progress = self._follower.progress()
        if progress is not None and progress.pipeline_id != self.position.pipeline_id:
            raise TablesChangedError("The pipeline id has changed: another pipeline publishes, or this one got its id.")
        ids = progress.topic_ids if progress is not None else {}
        if any(ids.get(topic, place.topic_id) != place.topic_id for topic, place in self.position.topics.items()):
            raise TablesChangedError("A table topic was created again.")

    @property
    def is_caught_up(self) -> bool:
        """Whether the store has everything that was published when this session started.

        The newest record is no criterion: under load the store never reaches it.
        """
        if self._goal is None:
            self._goal = self._follower.newest()
        return self._goal is not None and self._goal.place <= (self.position.version, self.position.lsn)

    def _run(self, batch: StoreBatch) -> Answers:
        """Run the batch's tasks. If they found a TRUNCATE, delete the truncated rows and run the tasks again.

        Only the driver deletes the truncated rows, while no task runs.
        """
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        result = batch.apply(self._markers)
        if not result.markers:
            return result
        self._truncate(result.markers)
        return batch.apply(self._markers)

    def _truncate(self, markers: dict[str, bytes]) -> None:
        for topic, rows in self._applying.truncate(markers).items():
            self._log.info("truncate_applied", table=str(self.tables[topic]), rows=rows)
        self._markers |= markers

    def _moved(self, ends: Offsets) -> Position:
        point = self._follower.covered(ends, self._left_out())
        topics = {
            topic: msgspec.structs.replace(place, next_offsets=tuple(ends[topic]))
            for topic, place in self.position.topics.items()
        }
        self._retention.poll(ends, point)
        moved = caught_up_at(msgspec.structs.replace(self.position, topics=topics), self._retention.caught_up_ms)
        if point is None or point.place < (self.position.version, self.position.lsn):
            return moved
        # Only now: a row in a new partition that this point covers was written before the point was read.
        self._check_partitions()
        return msgspec.structs.replace(moved, lsn=point.lsn, version=point.version)

    def _left_out(self) -> set[str]:
        """Return the topics that this store does not read. Their end offsets do not count for its position."""
        known = self._follower.tables()
        return known.keys() - chosen_tables(self._config.stores[self._name], known, self.position).keys()

    def _reap(self) -> None:
        if time.monotonic() < self._reap_at:
            return
        self._reap_at = time.monotonic() + _REAP_SECONDS
        reaped = self._store.reap(self.generation, self.position.version)
        if reaped:
            self._log.info("tombstones_reaped", rows=reaped)

    def _save(self, position: Position) -> None:
        self.position = self.saved = self._store.save_position(self.generation, position)
        self._saved_at = time.monotonic()


class TablesChangedError(TransientError):
    """A table was added, removed or changed its columns. The next session starts at once, with the new tables."""

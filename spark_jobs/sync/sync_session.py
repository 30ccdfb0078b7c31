"""One life of a store's sync: read on from its position, batch after batch, until something ends it.

The store's word is final. Its position is compared with what was written last before each batch and about every second
between batches: another owner ends this sync for good, everything else ends this life, and the next one goes by what
the store says then.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from cdc.config import Config
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN, Version
from cdc.stores.contract import Fit, Generation, Position, PositionLostError, Store, caught_up_at, displaced
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import use_warehouse
from spark_jobs.shape.store_tables import FedTables, chosen_tables
from spark_jobs.sync.batches import Ends, StoreBatch
from spark_jobs.sync.delete_retention import DeleteRetention
from spark_jobs.sync.progress_follower import Ledger
from spark_jobs.sync.topic_facts import committed_ends
from spark_jobs.tasks.apply_tasks import Applying
from spark_jobs.tasks.parking import Parking
from spark_jobs.tasks.task_results import Answers
from spark_jobs.warehouse.apply import WarehouseBatches

if TYPE_CHECKING:
    pass

# An idle store's position is written again when heartbeats have moved the LSN, at most this often.
_IDLE_SAVE_SECONDS = 0.5
_REAP_SECONDS = 600.0


class Feeding:
    """Driver's side of one generation of one store. Used by one thread at a time."""

    def __init__(
        self,
        *,
        name: str,
        config: Config,
        store: Store,
        generation: Generation,
        position: Position,
        ledger: Ledger,
        fed: FedTables,
        applying: Applying | WarehouseBatches,
        retention_ms: int,
    ) -> None:
        self._name = name
        self._config = config
        self._store = store
        self._ledger = ledger
        self._fed = fed
        self._applying = applying
        self._spark = fed.spark
        self._retention = DeleteRetention(
            name,
            caught_up_ms=position.caught_up_broker_ms,
            retention_ms=retention_ms,
            now_ms=ledger.broker_ms,
            ends=lambda: committed_ends(
                config, {topic: len(place.next_offsets) for topic, place in self.position.topics.items()}
            ),
        )
        self._markers: dict[str, bytes] = {}
        self._goal = ledger.newest()
        self._saved_at = 0.0
        self._reap_at = time.monotonic() + _REAP_SECONDS
        self._log = get_logger("sync").bind(store=name)
        self.generation = generation
        self.tables = fed.schemas
        self.position = position
        self.saved: Position | None = None

    def begin(self) -> None:
        """Room for every table, and the position as this life begins with it."""
        for table in self.tables.values():
            if self._store.ensure_table(self.generation, table) is Fit.NEEDS_GENERATION:
                self._log.warning("table_needs_generation", table=str(table), remedy=f"tailrace bootstrap {self._name}")
        self._save(self.position)

    def batch(self, batch: StoreBatch, ends: Ends) -> None:
        """Apply one batch, then move the position."""
        began = time.monotonic()
        self.compare()
        self._ledger.catch_up()
        self._compare_tables()
        result = self._run(batch)
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
        """Notice what has happened to the store, and let heartbeats move the LSN of one that has nothing to do."""
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
        """Is the store as this driver left it?"""
        found = self._store.position(self.generation)
        if found is None:
            raise PositionLostError("The store has lost its position.")
        if found != self.saved:
            raise displaced(found, self.saved or found)

    def _compare_tables(self) -> None:
        """Are the tables, and their topics, those that this life began with?"""
        known = self._ledger.tables()
        settings = self._config.stores[self._name]
        if chosen_tables(settings, known, self.position) != self._fed.source:
            raise TablesChangedError("The tables have changed.")
        progress = self._ledger.progress()
        if progress is not None and progress.pipeline_id != self.position.pipeline_id:
            raise TablesChangedError("Another pipeline publishes now, or this one has got its id.")
        ids = progress.topic_ids if progress is not None else {}
        if any(ids.get(topic, place.topic_id) != place.topic_id for topic, place in self.position.topics.items()):
            raise TablesChangedError("A topic was made anew.")

    @property
    def is_caught_up(self) -> bool:
        """Everything that was published when this life began is applied: under load, the newest is always ahead."""
        if self._goal is None:
            self._goal = self._ledger.newest()
        return self._goal is not None and self._goal.place <= (self.position.version, self.position.lsn)

    def _run(self, batch: StoreBatch) -> Answers:
        """The tasks; once more where they met a TRUNCATE, which is swept for in between, by the driver alone."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._name)
        result = batch.apply(self._markers)
        if not result.markers:
            return result
        self._sweep(result.markers)
        return batch.apply(self._markers)

    def _sweep(self, markers: dict[str, bytes]) -> None:
        writer = self._store.writer_factory(self.generation)()
        try:
            for topic, stamp in markers.items():
                swept = writer.truncate(self.tables[topic], Version.parse(stamp.decode()))
                self._markers[topic] = stamp
                self._log.info("truncate_applied", table=str(self.tables[topic]), rows=swept)
        finally:
            writer.close()

    def _moved(self, ends: Ends) -> Position:
        point = self._ledger.covered(ends, self._left_out())
        topics = {
            topic: msgspec.structs.replace(place, next_offsets=tuple(ends[topic]))
            for topic, place in self.position.topics.items()
        }
        self._retention.look(ends, point)
        moved = caught_up_at(msgspec.structs.replace(self.position, topics=topics), self._retention.caught_up_ms)
        if point is None or point.place < (self.position.version, self.position.lsn):
            return moved
        return msgspec.structs.replace(moved, lsn=point.lsn, version=point.version)

    def _left_out(self) -> set[str]:
        """Topics that this store does not get: where they end is nothing to it."""
        known = self._ledger.tables()
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
    """A table came, went or changed its columns: begin a new life with it, at once."""


def applying_for(
    name: str, config: Config, store: Store, generation: Generation, fed: FedTables, parked_topic: str
) -> Applying | WarehouseBatches:
    if isinstance(store, IcebergStore):
        use_warehouse(fed.spark, store.settings)
        return WarehouseBatches(store, generation, fed, Parking(config.kafka.client_options(), parked_topic))
    return Applying(
        # Writers are bound to the store as this life found it, so no other life's are used.
        id=f"{name} {generation.number} {uuid.uuid4().hex}",
        store=name,
        tables=fed.schemas,
        shapes=fed.rows,
        writer_factory=store.writer_factory(generation),
        kafka_options=config.kafka.client_options(),
        parked_topic=parked_topic,
    )

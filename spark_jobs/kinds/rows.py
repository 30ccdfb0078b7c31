"""Stores whose rows tasks write one by one: every `RowStore`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from cdc.audit.recheck import Audited
from cdc.audit.repair import Wrong, repair_store
from cdc.config import Config
from cdc.config.stores import SyncedStoreConfig
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.stores.contract import Generation, Position, RowStore, TableSchema
from spark_jobs.bootstrap.bulk_load import RowBulkLoad
from spark_jobs.kinds.row_retry import retry_rows
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.batches import RowReading
from spark_jobs.tasks.apply_tasks import ApplySettings
from spark_jobs.tasks.parked_rows import Parked
from spark_jobs.writing.contract import BatchReading, Loading, LoadProgress, Retried, StoreWriting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RowWriting(StoreWriting[RowStore, ApplySettings]):
    """Tasks write the rows with the store's `Writer`."""

    in_spark: ClassVar[bool] = False

    def session(self, spark: SparkSession, settings: SyncedStoreConfig) -> SparkSession:  # noqa: ARG002 - all share one
        return spark

    def applier(
        self, config: Config, name: str, store: RowStore, generation: Generation, store_tables: StoreTables
    ) -> ApplySettings:
        return ApplySettings(
            # A writer is bound to the state in which this session found the store, so sessions do not share writers.
            id=f"{name} {generation.number} {uuid.uuid4().hex}",
            store=name,
            tables=store_tables.schemas,
            shapes=store_tables.rows,
            writer_factory=store.writer_factory(generation),
            kafka_options=config.kafka.client_options(),
            parked_topic=control_topic(config.kafka.prefix, Control.PARKED),
        )

    def reading(
        self, config: Config, store_tables: StoreTables, applying: ApplySettings, parallelism: int
    ) -> BatchReading:
        return RowReading(config, store_tables, applying, parallelism)

    def loading(
        self, store_tables: StoreTables, config: Config, between: Callable[[LoadProgress], None]
    ) -> Loading[ApplySettings]:
        return RowBulkLoad(store_tables, config, between)

    def retry(
        self,
        config: Config,
        name: str,
        store: RowStore,
        generation: Generation,
        position: Position,
        tables: Mapping[str, TableSchema],
        rows: Sequence[Parked],
    ) -> list[Retried]:
        return retry_rows(config, name, store, generation, position, tables, rows)

    def repair(
        self,
        config: Config,
        spark: Callable[[], SparkSession],  # noqa: ARG002 - the rows are few
        audited: Audited,
        name: str,
        wrong: Wrong,
        marker: Version,
    ) -> int:
        return repair_store(config, audited, name, wrong, marker)

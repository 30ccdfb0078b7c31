"""The Iceberg warehouse, whose tables Spark writes by statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from cdc.audit.recheck import Audited
from cdc.audit.repair import Wrong
from cdc.config import Config, IcebergConfig
from cdc.config.stores import SyncedStoreConfig
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.positions.offset_index import Point
from cdc.stores.contract import Generation, Position, TableSchema
from sinks.iceberg.store import IcebergStore
from spark_jobs.audit.warehouse_repair import repair_warehouse
from spark_jobs.bootstrap.history_continuation import continue_history
from spark_jobs.bootstrap.warehouse_load import WarehouseBulkLoad
from spark_jobs.session.spark_session import use_warehouse, warehouse_session
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.batches import FrameReading
from spark_jobs.tasks.parked_rows import Parked
from spark_jobs.tasks.parking import Parking
from spark_jobs.tasks.task_results import Answers
from spark_jobs.warehouse.apply import WarehouseBatches
from spark_jobs.warehouse.retry import retry_in_warehouse
from spark_jobs.writing.contract import (
    BatchReading,
    Loading,
    LoadProgress,
    Offsets,
    Retried,
    StoreBatch,
    StoreWriting,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class _WarehouseBatch:
    frame: DataFrame
    applying: WarehouseBatches

    def apply(self, markers: Mapping[str, bytes]) -> Answers:  # noqa: ARG002 - a warehouse deletes truncated rows itself
        return self.applying.apply(self.frame)


@dataclass(frozen=True, slots=True)
class _WarehouseReading:
    frames: FrameReading
    applying: WarehouseBatches

    def batch(self, start: Offsets, end: Offsets) -> StoreBatch:
        return _WarehouseBatch(self.frames.frame(start, end), self.applying)


class WarehouseWriting(StoreWriting[IcebergStore, WarehouseBatches]):
    """Spark merges batches into the warehouse's tables."""

    in_spark: ClassVar[bool] = True
    unrepaired: ClassVar[str] = (
        "the warehouse's history contradicts the repair; rebuild the tables: tailrace bootstrap {store}"
    )

    def session(self, spark: SparkSession, settings: SyncedStoreConfig) -> SparkSession:
        return warehouse_session(spark, cast("IcebergConfig", settings))

    def applier(
        self,
        config: Config,
        name: str,  # noqa: ARG002 - the store knows its name
        store: IcebergStore,
        generation: Generation,
        store_tables: StoreTables,
    ) -> WarehouseBatches:
        use_warehouse(store_tables.spark, store.settings)
        parking = Parking(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PARKED))
        return WarehouseBatches(store, generation, store_tables, parking)

    def reading(
        self,
        config: Config,
        store_tables: StoreTables,
        applying: WarehouseBatches,
        parallelism: int,  # noqa: ARG002 - Spark decides
    ) -> BatchReading:
        return _WarehouseReading(FrameReading(config, store_tables), applying)

    def loading(
        self, store_tables: StoreTables, config: Config, between: Callable[[LoadProgress], None]
    ) -> Loading[WarehouseBatches]:
        return WarehouseBulkLoad(store_tables, config, between)

    def retry(
        self,
        config: Config,
        name: str,  # noqa: ARG002 - as above
        store: IcebergStore,
        generation: Generation,
        position: Position,
        tables: Mapping[str, TableSchema],
        rows: Sequence[Parked],
    ) -> list[Retried]:
        refused = retry_in_warehouse(config, store, generation, position, tables, rows)
        return [Retried.judged(row, refused.get(row.place)) for row in rows]

    def repair(
        self,
        config: Config,
        spark: Callable[[], SparkSession],
        audited: Audited,
        name: str,
        wrong: Wrong,
        marker: Version,
    ) -> int:
        return repair_warehouse(config, spark(), audited, name, wrong, marker)

    def before_switch(
        self,
        store: IcebergStore,
        generation: Generation,
        applying: WarehouseBatches,
        store_tables: StoreTables,
        *,
        old_position: Position | None,
        point: Point,
        began_ms: int,
    ) -> None:
        """Continue the history, which all generations share."""
        continue_history(
            store, generation, applying, store_tables, old_position=old_position, point=point, began_ms=began_ms
        )

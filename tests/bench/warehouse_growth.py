"""The cost of a batch of 10,000 changes in a small and a large table, and what a compaction gains.

The tables are filled by plain Spark, as a first load leaves them; the batches are records as they come from a topic.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdc.config import IcebergConfig
from cdc.config.settings import Location
from cdc.stores.contract import Generation, SchemaColumn, TableSchema
from sinks.iceberg import naming, statements
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.warehouse.apply import WarehouseBatches
from spark_jobs.warehouse.maintain import maintain_warehouse
from tests.bench.capture import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = {"small": 100_000, "large": 5_000_000}
CHANGES: Final = 10_000
_BATCHES: Final = 3
_FIRST_POSITION: Final = 10_000_000


class NoParking:
    """Every row fits."""

    def park(self, rows: Any) -> None:
        raise AssertionError(f"parked: {list(rows)[:3]}")


class Growth:
    def __init__(self, spark: SparkSession, folder: Path, scale: float) -> None:
        self._store = IcebergStore("bench", IcebergConfig(path=Location(str(folder / "growth"))), "bench")
        self._spark = warehouse_session(spark, self._store.settings)
        self._scale = scale

    def run(self) -> dict[str, object]:
        seconds: dict[str, list[float]] = {}
        written: dict[str, int] = {}
        tables = {name: _table(name) for name in ROWS}
        generation = self._store.create_generation(tables.values())
        self._store.switch(generation)
        for name, rows in ROWS.items():
            wanted = max(20_000, int(rows * self._scale))
            self._fill(tables[name], wanted)
            seconds[name], written[name] = self._batches(tables[name], generation, wanted)
        figures = {
            "batch_seconds": {name: round(statistics.median(each), 2) for name, each in seconds.items()},
            "batch_bytes_written": written,
            "batch_cost_large_to_small": round(
                statistics.median(seconds["large"]) / statistics.median(seconds["small"]), 2
            ),
        }
        return {**figures, **self._compaction(tables["large"])}

    def _fill(self, table: TableSchema, rows: int) -> None:
        """As one load leaves it: the current rows, and one open version of each."""
        own = f"id + 1 AS {naming.POSITION}, 0 AS {naming.SEQ}"
        frame = self._spark.range(0, rows, 1, 8).selectExpr("id")
        base = frame.selectExpr("id", *_columns("id"))
        began = time.monotonic()
        current = base.selectExpr("*", *own.split(", "), f"timestamp_seconds(id) AS {naming.AT}")
        current.writeTo(statements.full_name(naming.current_table(table))).append()
        history = base.selectExpr(
            "*",
            *own.split(", "),
            f"'r' AS {naming.OP}",
            f"CAST(NULL AS bigint) AS {naming.TRANSACTION}",
            f"timestamp_seconds(id) AS {naming.VALID_FROM}",
            f"CAST(NULL AS timestamp) AS {naming.VALID_TO}",
            f"CAST(NULL AS bigint) AS {naming.TO_POSITION}",
            f"CAST(NULL AS int) AS {naming.TO_SEQ}",
            f"true AS {naming.OPEN}",
        )
        history.writeTo(statements.full_name(naming.history_table(table))).append()
        say(f"  {table.table}: {rows:,} rows and versions filled in {time.monotonic() - began:.1f} s")

    def _batches(self, table: TableSchema, generation: Generation, rows: int) -> tuple[list[float], int]:
        fed = StoreTables(
            source={table.topic: table}, schemas={table.topic: table}, texts={table.topic: ""}, spark=self._spark
        )
        batches = WarehouseBatches(self._store, generation, fed, NoParking())
        seconds = []
        before = self._bytes(table)
        for number in range(_BATCHES + 1):  # the first one warms up
            records = _changes(self._spark, table, rows, number).persist()
            records.count()
            began = time.monotonic()
            batches.apply(records)
            seconds.append(time.monotonic() - began)
            records.unpersist()
            say(f"  {table.table}: a batch of {CHANGES:,} changes in {seconds[-1]:.1f} s")
        return seconds[1:], (self._bytes(table) - before) // (_BATCHES + 1)

    def _bytes(self, table: TableSchema) -> int:
        names = (naming.current_table(table), naming.history_table(table))
        return sum(
            self._spark.sql(f"SELECT sum(file_size_in_bytes) FROM {statements.full_name(name)}.files").collect()[0][0]
            for name in names
        )

    def _compaction(self, table: TableSchema) -> dict[str, object]:
        before = self._scan_seconds(table)
        began = time.monotonic()
        done = maintain_warehouse(self._spark, self._store, lambda upkeep: say(f"  {upkeep}"))
        seconds = time.monotonic() - began
        after = self._scan_seconds(table)
        return {
            "upkeep": {
                "seconds": round(seconds, 1),
                "files": [sum(each.files_before for each in done), sum(each.files for each in done)],
                "delete_files": [sum(each.deletes_before for each in done), sum(each.deletes for each in done)],
                "scan_seconds": [round(before, 2), round(after, 2)],
            }
        }

    def _scan_seconds(self, table: TableSchema) -> float:
        name = statements.full_name(naming.current_table(table))
        taken = []
        for _ in range(3):
            began = time.monotonic()
            self._spark.sql(f"SELECT sum(amount), max(note), count(*) FROM {name}").collect()
            taken.append(time.monotonic() - began)
        return min(taken)


def _table(name: str) -> TableSchema:
    columns = (
        SchemaColumn("id", "int8", -1),
        SchemaColumn("name", "text", -1),
        SchemaColumn("amount", "numeric", (10 << 16 | 2) + 4),
        SchemaColumn("at", "timestamptz", -1),
        SchemaColumn("note", "text", -1),
        SchemaColumn("kind", "int4", -1),
    )
    return TableSchema("public", name, f"bench.public.{name}", ("id",), columns)


def _columns(id_column: str) -> list[str]:
    return [
        f"concat('name ', {id_column}) AS name",
        f"CAST({id_column} % 100000 AS decimal(10,2)) AS amount",
        f"timestamp_seconds(1700000000 + {id_column}) AS at",
        f"md5(CAST({id_column} AS string)) AS note",
        f"CAST({id_column} % 7 AS int) AS kind",
    ]


def _changes(spark: SparkSession, table: TableSchema, rows: int, number: int) -> DataFrame:
    """Nine updates of rows all over the table for each insert."""
    position = f"{_FIRST_POSITION + number * CHANGES} + n"
    row = (
        '\'{"id":\', id, \',"name":"changed \', n, \'","amount":"1.50","at":"2026-01-01T00:00:00.000000Z",'
        '"note":"\', md5(CAST(n AS string)), \'","kind":1}\''
    )
    source = f'\'"source":{{"ts_us":1767225600000000,"txId":7,"position":\', {position}, \',"seq":1}}\''
    return (
        spark.range(0, CHANGES, 1, 4)
        .selectExpr("id AS n")
        .selectExpr(
            "n",
            f"CASE WHEN n % 10 = 0 THEN {rows} + {number * CHANGES} + n"
            f" ELSE pmod(xxhash64(n, {number}), {rows}) END AS id",
        )
        .selectExpr(
            f"'{table.topic}' AS topic",
            "0 AS partition",
            "n AS offset",
            "CAST(concat('{\"id\":', id, '}') AS binary) AS key",
            f'CAST(concat(\'{{"before":null,"after":\', {row}, \',\', {source}, \',"op":"u"}}\') AS binary) AS value',
            f"CAST(concat(lpad(lower(hex({position})), 16, '0'), '.00000001') AS binary) AS stamp",
            "TIMESTAMP '2026-01-01 00:00:00' AS timestamp",
        )
    )

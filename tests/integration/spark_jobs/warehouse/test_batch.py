"""A table's part of a batch on Spark keeps the versions of different rows apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.lsn import Version
from sinks.iceberg import naming
from sinks.iceberg.schemas import WarehouseColumn
from spark_jobs.warehouse.batch import FIT, history_rows, identity, last_of_each_key, one_of_each_version, typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = (
    "key string, version string, position long, seq int, op string, after string, ts_us long, transaction_id long,"
    " written_us long, partition int, offset long, records long"
)


def test_a_key_that_changes_only_its_sign_is_one_row(spark: SparkSession) -> None:
    """-0 and 0 are equal in Postgres and Spark but differ as text; the batch merges a delete and an insert
    correctly.
    """
    rows = [
        ('{"end":-0.0}', 1, "c", '{"end":-0.0,"key":"old"}'),
        ('{"end":-0.0}', 2, "d", None),
        ('{"end":0.0}', 2, "c", '{"end":0.0,"key":"new"}'),
        ('{"end":7.5}', 3, "c", '{"end":7.5,"key":"other"}'),
    ]
    events = spark.createDataFrame(
        [
            (key, str(Version(800, seq)), 800, seq, op, after, 1, 1, 1, 0, offset, 1)
            for offset, (key, seq, op, after) in enumerate(rows)
        ],
        EVENTS,
    )
    types = {"end": "double", "key": "string"}
    columns = [WarehouseColumn(source=name, name=name, type=kind) for name, kind in types.items()]
    by = identity(["end"], types)
    fit = one_of_each_version(typed(events, columns, types).where(FIT), by)
    history = history_rows(fit, [], by).selectExpr("key", f"{naming.OP} AS op", f"{naming.OPEN} AS open").collect()
    assert sorted(map(tuple, history)) == [("new", "c", True), ("old", "c", False), ("other", "c", True)]
    assert sorted(row["key"] for row in last_of_each_key(fit, by).select("key").collect()) == ["new", "other"]
    assert identity(["key"], types) == [naming.KEY_TEXT]

"""Events as typed columns on Spark: no record is lost, whatever its value is."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from cdc.config import TableShape
from cdc.lsn import Version
from cdc.stores.contract import SchemaColumn, TableSchema
from sinks.iceberg import naming
from sinks.iceberg.schemas import WarehouseColumn
from spark_jobs.shape.analysis import CompiledShape, compile_shape
from spark_jobs.shape.evaluation import shape_session, with_shapes
from spark_jobs.shape.shaped_rows import FailedRow, shaped_row
from spark_jobs.shape.typed_rows import UNREAD, events_of, typed_events
from spark_jobs.warehouse.batch import UNREADABLE, loaded, newest, typed, versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = "topic string, partition int, offset long, key binary, value binary, stamp binary, timestamp timestamp"
TYPES = {"id": "int", "body": "string", "tags": "array<string>"}
COLUMNS = [WarehouseColumn(source=name, name=name, type=kind) for name, kind in TYPES.items()]
TABLE = TableSchema(
    "public",
    "t",
    "p.public.t",
    ("id",),
    (SchemaColumn("id", "int4", -1), SchemaColumn("body", "text", -1), SchemaColumn("tags", "_text", -1)),
)
# Jackson's own limit is 20 million characters.
LONG = 20_000_001
# A tombstone follows the delete. What cannot be read is no delete, although there is no row in it.
UNREADABLE_VALUES = {3: b'{"before":null,"after":{"id":3,"body":"tor', 4: b"[]", 5: b'{"after":{"id":5},"op":null}'}


def _records(spark: SparkSession) -> DataFrame:
    values: list[tuple[int, bytes | None]] = [
        (1, b'{"before":null,"after":{"id":1,"body":"LONG","tags":["a"]},"source":{"ts_us":1},"op":"c"}'),
        (2, b'{"before":null,"after":null,"source":{},"op":"d"}'),
        (2, None),
        *UNREADABLE_VALUES.items(),
        (6, b'{"before":null,"after":null,"source":{},"op":"c"}'),
    ]
    written = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = [
        (TABLE.topic, 0, offset, b'{"id":%d}' % key, value, str(Version(800, key)).encode(), written)
        for offset, (key, value) in enumerate(values)
    ]
    # Made by Spark, row by row: neither a literal of the plan nor a value that passes through Python.
    long = f"binary(replace(string(value), 'LONG', repeat('x', {LONG} + partition)))"
    return spark.createDataFrame(rows, RECORDS).selectExpr("* EXCEPT (value)", f"{long} AS value")


def _found(rows: DataFrame) -> dict[str, Any]:
    picked = rows.selectExpr(
        f"{naming.KEY_TEXT} AS key",
        f"{naming.OP} AS op",
        "length(body) AS length",
        f"{naming.UNFIT} AS unfit",
        f"{naming.RECORDS} AS records",
    )
    return {row["key"]: row.asDict() for row in picked.collect()}


@pytest.mark.parametrize("bulk", [False, True], ids=["batch", "bulk load"])
def test_every_record_is_a_row_a_delete_or_unfit(spark: SparkSession, bulk: bool) -> None:
    """Every record is counted once, as a row, a delete, or unfit with a reason, also texts of 20 million characters."""
    records = _records(spark)
    if bulk:
        found = _found(loaded(newest(typed_events(records, TYPES)), COLUMNS))
    else:
        found = _found(typed(versions(events_of(records)), COLUMNS, TYPES))
    long = found.pop('{"id":1}')
    assert (long["op"], long["length"], long["unfit"]) == ("c", LONG, [])
    gone = found.pop('{"id":2}')
    assert (gone["op"], gone["unfit"], gone["records"]) == ("d", [], 2)
    assert sorted(found) == [f'{{"id":{key}}}' for key in (*UNREADABLE_VALUES, 6)]
    assert {each["op"] for each in found.values()} == {UNREAD}
    assert all(UNREADABLE in each["unfit"] for each in found.values())


def test_a_shape_parks_a_row_that_cannot_be_read(spark: SparkSession) -> None:
    """A row with unreadable values is parked, and no expression is evaluated over their NULLs."""
    session = shape_session(spark)
    shape = compile_shape(session, TABLE, TableShape(select={"size": "coalesce(length(body), 0)"}))
    assert isinstance(shape, CompiledShape)
    shaped = with_shapes(_records(session), {TABLE.topic: shape}).where("value IS NOT NULL")
    found = {row["key"]: row["shaped"] for row in shaped.selectExpr("string(key) AS key", "shaped").collect()}
    assert found['{"id":1}']["computed"] == f'{{"size":{LONG}}}'
    for key in UNREADABLE_VALUES:
        after = found[f'{{"id":{key}}}']
        held = after.asDict() if after is not None else None
        assert key == 5 or isinstance(shaped_row(shape.row, b'{"id":1}', held), FailedRow)
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)

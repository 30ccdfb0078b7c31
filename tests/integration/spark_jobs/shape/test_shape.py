"""Expressions of a shape: refused with their place, computed in the documented form, failed for single rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from cdc.config import TableShape
from cdc.stores.contract import SchemaColumn, TableSchema
from spark_jobs.shape.analysis import CompiledShape, compile_shape, parse_problems
from spark_jobs.shape.evaluation import shape_session, typed_shape, with_shapes
from spark_jobs.shape.shaped_rows import FailedRow, shaped_row
from spark_jobs.shape.store_tables import StoreTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableSchema(
    "public",
    "orders",
    "p.public.orders",
    ("id",),
    (
        SchemaColumn("id", "int8", -1),
        SchemaColumn("status", "text", -1),
        SchemaColumn("total", "numeric", ((10 << 16) | 2) + 4),
        SchemaColumn("Total", "int4", -1),
        SchemaColumn("at", "timestamptz", -1),
        SchemaColumn("tags", "_text", -1),
        SchemaColumn("topic", "text", -1),
    ),
)
ROW: dict[str, Any] = {
    "id": 1,
    "status": "open",
    "total": "19.90",
    "Total": 4,
    "at": "2024-02-29T12:34:56.700000Z",
    "tags": ["a", None],
    "topic": "x",
}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield shape_session(spark)
    # The last session that was made is everybody's otherwise.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _compiled(session: SparkSession, shape: TableShape) -> CompiledShape:
    found = compile_shape(session, TABLE, shape)
    assert isinstance(found, CompiledShape), [str(each) for each in found]
    return found


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("total +", "character 8", "Syntax error"),
        ("\n total > > 1", "line 2, character", "Syntax error"),
        ("zz + 1", "character 1", "`zz` cannot be resolved"),
        ("id + nosuch(status)", "character 6", "`nosuch`"),
        ("cast(id as nosuch)", "character 12", "NOSUCH"),
        ("status + true", "character 1", "mismatch"),
        ("id + (select max(x) from y)", "character 6", "a subquery"),
        ("id in (select 1)", "character 4", "a subquery"),
        ("sum(total)", "character 1", "an aggregate"),
        ("max(id) over ()", "character 1", "a window"),
        ("explode(tags)", None, "one value for each row"),
        ("concat(*)", "character 8", "`*`"),
        ("rand()", None, "the same value"),
        ("uuid()", None, "the same value"),
        ("at < current_timestamp()", "character 6", "the current time"),
        ("at > date'today'", "character 6", "the current time"),
        ("at > 'now'", "character 1", "the current time"),
        ("to_date('today')", "character 1", "the current time"),
        ("aes_encrypt(status, '0000111122223333')", "character 1", "`aes_encrypt`"),
        ("current_user()", "character 1", "the session"),
        ("reflect('java.lang.System', 'getenv', 'HOME')", "character 1", "a Java method call"),
        ("id + java_method('a', 'b')", "character 6", "a Java method call"),
        ("struct(id)", None, "no form"),
        ("at - at", None, "no form"),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(
    session: SparkSession, text: str, at: str | None, what: str
) -> None:
    """An expression that is not SQL, does not fit the table or is not deterministic is refused without any data."""
    found = compile_shape(session, TABLE, TableShape(select={"f": text}))
    assert isinstance(found, list)
    assert [each.key for each in found] == [("select", "f")]
    assert what in found[0].what
    assert (found[0].at or "").startswith(at or "")
    assert (found[0].at is None) == (at is None)


def test_all_problems_of_a_shape_are_found(session: SparkSession) -> None:
    """Every problem is reported: unknown columns, a replaced key, a `where` that is no condition, syntax errors."""
    shape = TableShape(columns=("gone",), where="id", select={"id": "1", "f": "1 +"})
    found = compile_shape(session, TABLE, shape)
    assert isinstance(found, list)
    assert {each.key for each in found} == {("columns",), ("where",), ("select", "id"), ("select", "f")}
    assert [each.key for each in parse_problems(session, shape)] == [("select", "f")]


def test_computed_fields_have_the_documented_form(session: SparkSession) -> None:
    """A computed field has the form of a column of its type, and the store's schema has that type."""
    select = {
        "a": "cast(total * 100 as bigint)",
        "b": "cast(total / 3 as decimal(12, 4))",
        "c": "date(at)",
        "d": "at + interval 1 day",
        "e": "timestamp_ntz'2024-01-01 00:00:00.5'",
        "f": "transform(tags, tag -> upper(tag) || status)",
        "g": "cast(null as int)",
        "h": "cast('NaN' as double)",
        "i": "unhex('00ff')",
        "j": "`Total` > total",
        "status": "upper(status) || topic",
    }
    shape = _compiled(session, TableShape(columns=("Total",), select=select))
    (found,) = _shaped(session, shape, [ROW])
    assert found == (
        b'{"id":1,"Total":4,"a":1990,"b":"6.6333","c":"2024-02-29Z","d":"2024-03-01T12:34:56.700000Z",'
        b'"e":"2024-01-01T00:00:00.5Z","f":["Aopen",null],"g":null,"h":"NaN","i":"AP8=","j":false,"status":"OPENx"}'
    )
    assert [(column.name, column.type) for column in shape.schema.columns] == [
        ("id", "int8"),
        ("Total", "int4"),
        *zip(
            select,
            ["int8", "numeric", "date", "timestamptz", "timestamp", "_text", "int4", "float8", "bytea", "bool", "text"],
            strict=True,
        ),
    ]


def test_typed_stores_get_typed_values(session: SparkSession) -> None:
    """For a typed store the same expressions give Spark's types."""
    shape = _compiled(session, TableShape(where="id > 0", select={"b": "total * 2", "s": "cast(1 as tinyint)"}))
    frame = session.createDataFrame([(json.dumps(ROW), 7), (None, 8)], "after string, row int")
    good, gone = typed_shape(frame, shape).collect()
    assert (good["row"], good["shaped"]["kept"], good["shaped"]["failure"]) == (7, True, None)
    assert (good["shaped"]["computed"]["b"], good["shaped"]["computed"]["s"]) == (Decimal("39.80"), 1)
    assert gone["shaped"] is None


def test_an_expression_that_fails_fails_only_its_row(session: SparkSession) -> None:
    """A failing expression fails its row and not the job; NULL in `where` is false; excluded rows are not computed."""
    select = {"cents": "cast(total * 100 as int)", "share": "1 / `Total`", "day": "date(at)", "again": "1 / `Total`"}
    shape = _compiled(session, TableShape(columns=(), where="status <> 'draft'", select=select))
    rows = [
        ROW,
        {**ROW, "status": "draft", "Total": 0},
        {**ROW, "status": None},
        {**ROW, "Total": 0},
        {**ROW, "total": "99999999.99"},
        {**ROW, "at": "infinity"},
        {**ROW, "total": "NaN"},
    ]
    good, draft, unknown, *failed = _shaped(session, shape, rows)
    assert good == b'{"id":1,"again":0.25,"cents":1990,"day":"2024-02-29Z","share":0.25}'
    assert (draft, unknown) == (None, None)
    reasons = [each.reason for each in failed if isinstance(each, FailedRow)]
    assert [reason.partition(":")[0] for reason in reasons] == ["again", "cents", "day", "cents"]
    assert "the value of at does not fit" in reasons[2]
    assert not any("99999999" in reason for reason in reasons)


def test_each_topic_has_its_own_shape(session: SparkSession) -> None:
    """Two tables in one stream have their own shapes, and deletes and tombstones have none."""
    other = TABLE._replace(topic="p.public.other")
    one, two = _compiled(session, TableShape(where="id > 0")), compile_shape(session, other, TableShape(where="id > 5"))
    assert isinstance(two, CompiledShape)
    values = [(topic, bytearray(_event(ROW))) for topic in (TABLE.topic, other.topic, "p.public.third")]
    gone: list[tuple[str, bytearray | None]] = [(TABLE.topic, None), (TABLE.topic, bytearray(_event(None)))]
    frame = session.createDataFrame([*values, *gone], "topic string, value binary")
    shaped = with_shapes(frame, {TABLE.topic: one, other.topic: two})
    assert [row["shaped"] and row["shaped"]["kept"] for row in shaped.collect()] == [True, False, None, None, None]


def test_a_store_without_expressions_has_nothing_evaluated(session: SparkSession) -> None:
    """The stream of a store without expressions is unchanged; tasks remove the unlisted columns."""
    frame = session.createDataFrame([], "topic string, value binary")
    shape = _compiled(session, TableShape(columns=("status",)))
    fed = StoreTables(source={}, schemas={}, texts={}, spark=session, shapes={TABLE.topic: shape})
    assert fed.evaluated(frame) is frame


def _event(row: dict[str, Any] | None) -> bytes:
    return json.dumps({"op": "u" if row else "d", "before": None, "after": row}, separators=(",", ":")).encode()


def _shaped(session: SparkSession, shape: CompiledShape, rows: list[dict[str, Any]]) -> list[bytes | FailedRow | None]:
    frame = session.createDataFrame(
        [(TABLE.topic, bytearray(_event(row))) for row in rows], "topic string, value binary"
    )
    found = with_shapes(frame, {TABLE.topic: shape}).select("shaped").collect()
    return [
        shaped_row(shape.row, json.dumps(row, separators=(",", ":")).encode(), each["shaped"].asDict())
        for row, each in zip(rows, found, strict=True)
    ]

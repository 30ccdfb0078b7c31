"""Records of a topic as typed Arrow batches: exact values, and NULL for what a type cannot hold."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from cdc.errors import RefusedError, UsageError
from cdc.stores.contract import SchemaColumn, TableSchema
from spark_jobs.source.arrow_columns import arrow_array
from spark_jobs.source.columns import requested_columns, source_columns
from spark_jobs.source.record_batches import RawRecord, RecordBatches

V = b"0000000000000001.00000001"


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


TABLE = TableSchema(
    "public",
    "t",
    "p.public.t",
    ("id",),
    (
        SchemaColumn("id", "int4", -1),
        SchemaColumn("total", "numeric", _numeric(10, 2)),
        SchemaColumn("spot", "point", -1),
        SchemaColumn("tags", "_text", -1),
    ),
)


def _event(after: str, op: str = "c") -> bytes:
    return f'{{"before":null,"after":{after},"source":{{"version":"1","seq":1}},"op":"{op}","ts_ms":1}}'.encode()


def _rows(*records: RawRecord, deletes: bool = False, as_text: bool = False) -> list[dict[str, Any]]:
    batch = RecordBatches(TABLE.topic, source_columns(TABLE, as_text=as_text), deletes=deletes).batch(records)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", 2147483647, 2147483647),
        ("int", 2147483648, None),
        ("int", "12", 12),  # the column was a text before
        ("bigint", 9007199254740993, 9007199254740993),
        ("double", "-Infinity", float("-inf")),
        ("double", 1e300, 1e300),
        ("boolean", True, True),
        ("boolean", "maybe", None),
        ("decimal(10,2)", "5.00", Decimal("5.00")),
        ("decimal(10,2)", "NaN", None),
        ("decimal(10,2)", "123456789.00", None),
        ("date", "2024-02-29Z", date(2024, 2, 29)),
        ("date", "infinity", None),
        ("date", "-0043-03-15Z", None),
        ("date", "0000-01-01Z", None),
        ("date", "+12024-01-01Z", None),
        ("timestamp_ntz", "2024-02-29T12:34:56.7Z", datetime(2024, 2, 29, 12, 34, 56, 700_000)),  # noqa: DTZ001
        (
            "timestamp",
            "2024-02-29T10:34:56.789012Z",
            datetime(2024, 2, 29, 10, 34, 56, 789_012, tzinfo=timezone.utc),
        ),
        ("timestamp", "0000-12-31T23:59:59.000000Z", None),
        ("timestamp", "-infinity", None),
        ("binary", "AP8Q", b"\x00\xff\x10"),
        ("string", "é", "é"),
        ("array<int>", [1, None, 3], [1, None, 3]),
        ("array<int>", [], []),
        ("array<int>", [[1, 2], [3]], None),
        ("array<int>", "[0:2]={1,2,3}", None),
        ("array<int>", "[1,null]", [1, None]),
        ("array<date>", ["2024-02-29Z", "infinity"], None),
        ("array<string>", '[["a"]]', None),
        ("array<decimal(6,2)>", ["1.10", None], [Decimal("1.10"), None]),
    ],
)
def test_a_value_is_exact_or_null(kind: str, value: Any, expected: Any) -> None:
    """A value that its type cannot hold is NULL, and its neighbours keep theirs."""
    other = {"int": 1, "bigint": 1}.get(kind)
    assert arrow_array(kind, [None, value, None, other, None]).to_pylist() == [None, expected, None, other, None]


def test_an_insert_has_the_columns_and_our_own() -> None:
    """A row has typed values, and its key, version and operation. A value without a type has its JSON text."""
    record = (b'{"id":1}', V, _event('{"id":1,"total":"5.00","spot":{"x":1.5,"y":2.0},"tags":["a",null]}'))
    assert _rows(record) == [
        {
            "id": 1,
            "total": Decimal("5.00"),
            "spot": '{"x":1.5,"y":2.0}',
            "tags": ["a", None],
            "_key": '{"id":1}',
            "_version": V.decode(),
            "_op": "c",
        }
    ]


def test_a_field_that_is_missing_is_null() -> None:
    """Records of before a column was added lack it; fields of dropped columns are not read."""
    (row,) = _rows((b'{"id":1}', V, _event('{"id":1,"gone":[1,{}]}')))
    assert row["id"] == 1
    assert row["total"] is row["spot"] is row["tags"] is None


def test_a_record_of_an_older_schema_keeps_what_fits() -> None:
    """One record with other JSON types changes no other record of its batch."""
    rows = _rows(
        (b'{"id":1}', V, _event('{"id":"7","total":8,"spot":null,"tags":"[0:1]={a,b}"}')),
        (b'{"id":2}', V, _event('{"id":2,"total":"2.50","spot":null,"tags":["b"]}')),
    )
    assert [(row["id"], row["total"], row["tags"]) for row in rows] == [(7, 8, None), (2, Decimal("2.50"), ["b"])]


def test_as_text_gives_the_exact_text() -> None:
    """`types=text`: the content of a JSON string, the JSON of any other value."""
    (row,) = _rows((b'{"id":1}', V, _event('{"id":1,"total":"NaN","spot":null,"tags":[["a"]]}')), as_text=True)
    assert (row["id"], row["total"], row["spot"], row["tags"]) == ("1", "NaN", None, '[["a"]]')


def test_deletes_and_truncates_are_rows_of_a_stream() -> None:
    """A delete is one row, with the key's columns; a TRUNCATE is one without a key. A batch read has neither."""
    records: list[RawRecord] = [
        (b'{"id":3}', V, _event("null", "d")),
        (b'{"id":3}', V, None),
        (b'{"__truncate":0}', V, _event("null", "t")),
    ]
    rows = _rows(*records, deletes=True)
    assert [(row["id"], row["total"], row["_key"], row["_op"]) for row in rows] == [
        (3, None, '{"id":3}', "d"),
        (None, None, None, "t"),
    ]
    assert _rows(*records) == []


@pytest.mark.parametrize("value", [b"no JSON", b'{"op":"c"', b"[]", _event("null", "c")])
def test_a_foreign_record_is_refused(value: bytes) -> None:
    """A record that no row can be read from ends the read; its values are not in the message."""
    with pytest.raises(RefusedError, match=r"a record that is not|without a row") as error:
        _rows((b'{"id":1}', V, value))
    assert "no JSON" not in str(error.value)


def test_names_do_not_collide() -> None:
    """Columns that are called like ours, or alike but for their case, are still there."""
    table = TABLE._replace(columns=tuple(SchemaColumn(name, "int4", -1) for name in ("id", "ID", "_op", "_Key")))
    names = [column.name for column in source_columns(table)]
    assert names == ["id", "ID_", "__op", "__Key", "_key", "_version", "_op"]


def test_a_schema_chooses_columns() -> None:
    """The user's schema picks columns, and `string` instead of a type; anything else is an error."""
    known = source_columns(TABLE)
    found = requested_columns(known, [("total", "string"), ("_version", "string")])
    assert [(column.name, column.type, column.source) for column in found] == [
        ("total", "string", "total"),
        ("_version", "string", ""),
    ]
    with pytest.raises(UsageError, match="no column 'totl'"):
        requested_columns(known, [("totl", "string")])
    with pytest.raises(UsageError, match="total is decimal"):
        requested_columns(known, [("total", "double")])

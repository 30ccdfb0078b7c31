"""A table as capture encodes it: rows and keys as JSON, and tables that cannot be captured."""

from __future__ import annotations

import json

import pytest

from cdc.errors import ProtocolError, RefusedError
from cdc.lsn import Version
from cdc.pgoutput.messages import UNCHANGED, Value
from cdc.tables import schema_record
from tests.harness.docs.events_page import example
from tests.harness.pipeline.event_rules import BOOL, ID_AND_NAME, INT8, TEXT, make_table

NUMERIC, BYTEA, FLOAT8, TEXT_ARRAY = 1700, 17, 701, 1009

WIDE = [
    ("id", INT8, True),
    ("name", TEXT, False),
    ("paid", BOOL, False),
    ("price", NUMERIC, False),
    ("blob", BYTEA, False),
    ("score", FLOAT8, False),
    ("tags", TEXT_ARRAY, False),
]


def test_a_row_is_a_json_object_in_the_order_of_its_columns() -> None:
    """Values have the forms of docs/reference/types.md, and NULL is null."""
    table = make_table(columns=WIDE)
    row = [b"7", b'a "quoted"\n', b"t", b"1.50", b"\\x00ff", b"2", b'{a,NULL,"b c"}']
    assert table.encode_row(row) == (
        b'{"id":7,"name":"a \\"quoted\\"\\n","paid":true,"price":"1.50",'
        b'"blob":"AP8=","score":2.0,"tags":["a",null,"b c"]}'
    )
    assert table.encode_row([b"7", *[None] * 6]).count(b"null") == 6


def test_a_key_has_the_columns_of_the_primary_key_in_key_order() -> None:
    """A key has the primary key's column order, as in Debezium, since the bytes decide the partition."""
    columns = [("a", INT8, True), ("b", TEXT, True), ("c", TEXT, False)]
    table = make_table(columns=columns, key=("b", "a"))
    assert table.encode_key([b"1", b"x", None]) == b'{"b":"x","a":1}'
    assert table.key_values([b"1", b"x", None]) == (b"x", b"1")


def test_a_key_may_have_fewer_columns_than_the_replica_identity() -> None:
    """Under REPLICA IDENTITY FULL the record's key is still the primary key."""
    table = make_table(columns=[("id", INT8, True), ("name", TEXT, True)], identity="f")
    assert table.encode_key([b"1", b"x"]) == b'{"id":1}'


@pytest.mark.parametrize("name", ["%", "100%", "%d", '"', "\\", "a\nb", "é", "{}", "x'; DROP TABLE t; --"])
def test_column_names_are_only_names(name: str) -> None:
    """Column names are neither formatted, escaped twice nor executed."""
    table = make_table(columns=[(name, INT8, True), ("other", TEXT, False)], key=(name,))
    assert json.loads(table.encode_row([b"1", b"%s"])) == {name: 1, "other": "%s"}
    assert json.loads(table.encode_key([b"1", None])) == {name: 1}


def test_a_table_whose_old_rows_lack_the_key_is_refused() -> None:
    """A table whose replica identity lacks the key is refused, since its deletes would have no key."""
    with pytest.raises(RefusedError, match="lacks the key column 'id'") as refusal:
        make_table(columns=[("id", INT8, False), ("code", TEXT, True)], identity="i")
    assert "REPLICA IDENTITY" in str(refusal.value.remedy)


def test_a_table_without_a_primary_key_is_refused() -> None:
    """A table without a primary key is refused, since compaction needs a key."""
    with pytest.raises(RefusedError, match="no primary key"):
        make_table(key=())


def test_it_is_known_which_values_were_left_out() -> None:
    """Left-out values are known, and NULL is not one of them."""
    table = make_table(columns=[("id", INT8, True), *((name, TEXT, False) for name in "abcd")])
    assert table.missing_toast_indexes([b"1", None, UNCHANGED, b"", UNCHANGED]) == [2, 4]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param([b"1"], id="too short"),
        pytest.param([b"1", b"a", b"b"], id="too long"),
        pytest.param([b"1", b"\xff"], id="not UTF-8"),
        pytest.param([b"1", UNCHANGED], id="left out"),
    ],
)
def test_a_row_that_its_columns_do_not_promise_is_refused_without_its_values(row: list[Value]) -> None:
    """A row with the wrong number of values is refused with the table's name and no values."""
    with pytest.raises(ProtocolError, match=r"public\.orders") as refusal:
        make_table().encode_row(row)
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize("key", [None, UNCHANGED])
def test_a_key_without_a_value_is_refused(key: Value) -> None:
    """A NULL in the key is refused."""
    with pytest.raises(ProtocolError):
        make_table().encode_key([key, b"a"])


def test_the_names_and_types_are_kept_for_the_schema_record() -> None:
    """The encoder keeps the names and types for the record on `__schema`."""
    table = make_table(columns=[*ID_AND_NAME, ("price", NUMERIC, False)])
    assert table.columns() == [("id", "int8", -1), ("name", "text", -1), ("price", "numeric", -1)]
    assert (str(table.shape), table.topic) == ("public.orders", "shop.public.orders")


def test_the_documented_schema_record_has_the_fields_of_a_real_one() -> None:
    """The schema record in docs/reference/events.md has the fields of a real one."""
    record = schema_record.record(make_table(), Version(0x5000, 0), "shop.__schema")
    assert record.value is not None
    real, documented = json.loads(record.value), example("`<prefix>.__schema`")
    assert list(documented) == list(real)
    assert list(documented["columns"][0]) == list(real["columns"][0])
    assert json.loads(record.key) == {"topic": "shop.public.orders", "version": "0000000000005000.00000000"}


def test_a_changed_column_changes_the_digest_of_a_table() -> None:
    """A changed column changes the table's digest, and an equal table has the same one."""
    assert schema_record.schema_digest(make_table()) == schema_record.schema_digest(make_table())
    assert schema_record.schema_digest(make_table()) != schema_record.schema_digest(
        make_table(columns=[("id", INT8, True), ("name", BOOL, False)])
    )

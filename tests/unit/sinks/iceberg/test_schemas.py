"""Names and types in the warehouse: reversible, never the same for two tables, exact or a string."""

from __future__ import annotations

import pytest

from cdc.stores.contract import SchemaColumn, TableSchema
from sinks.iceberg import naming
from sinks.iceberg.schemas import CURRENT_OWN, HISTORY_OWN, iceberg_schema, spark_name, warehouse_columns, widens
from sinks.typed_columns import spark_type
from spark_jobs.warehouse.batch import key_ranges


def _table(schema: str, table: str, *columns: SchemaColumn) -> TableSchema:
    return TableSchema(schema, table, f"x.{schema}.{table}", ("id",), columns)


def test_no_schema_of_the_source_has_the_name_of_one_of_ours() -> None:
    """A schema named like our namespaces is escaped, and two tables never share a name."""
    plain, posing = _table("public", "orders"), _table("public__history", "orders")
    assert naming.history_table(plain) == ("public__history", "orders")
    assert naming.current_table(posing) == ("public-5f_history", "orders")
    assert naming.current_table(_table("__tailrace", "state")) != naming.STATE
    assert naming.generation_table(plain, 3) == ("public__g3", "orders")
    assert naming.current_table(_table("public__g3", "orders")) == ("public-5f_g3", "orders")
    assert naming.generation_of("public__g3") == 3
    assert naming.generation_of("public-5f_g3") is None
    assert naming.current_table(_table("Mixed Case", "a/b.c")) == ("Mixed-20Case", "a-2fb-2ec")


def test_columns_keep_their_names_unless_they_would_be_misread() -> None:
    """Dots, quotes, blanks and our own names are escaped, and names that differ only in case stay distinct."""
    names = naming.column_names(["id", "ID", "a.b", 'a"b', "größe", "_tailrace_op", "__tailrace_op"])
    assert names == ["id", "ID_", "a-2eb", "a-22b", "größe", "__tailrace_op", "___tailrace_op"]
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("type_name", "modifier", "wanted"),
    [
        ("int2", -1, "int"),
        ("int8", -1, "bigint"),
        ("numeric", (10 << 16 | 2) + 4, "decimal(10,2)"),
        ("numeric", (38 << 16 | 38) + 4, "decimal(38,38)"),
        ("numeric", (39 << 16 | 2) + 4, "string"),
        ("numeric", (5 << 16 | (-3 & 0x7FF)) + 4, "string"),
        ("numeric", (3 << 16 | 5) + 4, "string"),
        ("numeric", -1, "string"),
        ("bit", 1, "boolean"),
        ("bit", 3, "string"),
        ("timestamp", 3, "timestamp_ntz"),
        ("timestamptz", -1, "timestamp"),
        ("time", -1, "string"),
        ("_int4", -1, "array<int>"),
        ("_numeric", (6 << 16 | 2) + 4, "array<decimal(6,2)>"),
        ("_uuid", -1, "array<string>"),
        ("_box", -1, "string"),
        ("public.mood", -1, "string"),
        ("public._mood", -1, "string"),
    ],
)
def test_a_type_has_a_column_that_holds_it_exactly_or_a_string(type_name: str, modifier: int, wanted: str) -> None:
    """Each type has an exact column or a string, also after the way to Iceberg and back."""
    column = SchemaColumn("c", type_name, modifier)
    assert spark_type(column) == wanted
    columns = warehouse_columns(_table("public", "t", column))
    for own in (CURRENT_OWN, HISTORY_OWN):
        schema = iceberg_schema(columns, own)
        assert spark_name(schema.find_type("c")) == wanted
        assert [field.name for field in schema.fields] == ["c", *own]


def test_only_what_changes_no_value_is_widened_in_place() -> None:
    """Only integers, floats and precision are widened in place, and nothing is narrowed."""
    assert widens("int", "bigint")
    assert widens("float", "double")
    assert widens("decimal(10,2)", "decimal(12,2)")
    for old, new in (("bigint", "int"), ("int", "double"), ("decimal(10,2)", "decimal(12,3)"), ("string", "bigint")):
        assert not widens(old, new)


@pytest.mark.parametrize(
    ("keys", "most", "ranges"),
    [
        ([], 3, []),
        ([7], 3, [(7, 7)]),
        ([3, 1, 2, 2], 1, [(1, 3)]),
        ([5000, 1, 2, 101, 100, -9], 3, [(-9, 2), (100, 101), (5000, 5000)]),
        ([1, 10, 20], 9, [(1, 1), (10, 10), (20, 20)]),
    ],
)
def test_a_batch_asks_for_the_ranges_that_its_keys_lie_in(
    keys: list[int], most: int, ranges: list[tuple[int, int]]
) -> None:
    """Every key of a batch is in one of the ranges, and the widest gaps are in none."""
    assert key_ranges(keys, most) == ranges

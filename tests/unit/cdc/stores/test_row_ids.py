"""Row ids, schemas and the registry, which all stores share."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import names
from cdc.config.settings import Location
from cdc.config.stores import IcebergConfig, RedisConfig
from cdc.errors import RefusedError, UsageError
from cdc.secrets import Url
from cdc.stores.contract import SchemaColumn, TableSchema
from cdc.stores.registry import is_store_kind, open_store
from cdc.stores.row_ids import row_id_of

RECORD = {
    "format": 1,
    "version": "00000000020217c0.00000000",
    "schema": "public",
    "table": "customers",
    "topic": "shop.public.customers",
    "key": ["id"],
    "columns": [{"name": "id", "type": "int8", "type_modifier": -1}],
}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"id":42}', "42"),
        (b'{"id":"42"}', "42"),
        (b'{"id":"a \\"b\\" \\u00e9"}', 'a "b" é'),
        (b'{"order_id":700,"line":1}', '["700","1"]'),
        (b'{"a":"x","b":true}', '["x","true"]'),
        (b'{"at":1e+20}', "1e+20"),
        (b'{"tags":["a","b"]}', '["a","b"]'),
    ],
)
def test_an_id_is_the_keys_value(key: bytes, expected: str) -> None:
    """An id is the text of a key, JSON for another type, and a JSON array of strings for several columns."""
    assert row_id_of(key) == expected


@given(values=st.lists(st.text(), min_size=1, max_size=3))
def test_an_id_is_the_one_that_names_makes(values: list[str]) -> None:
    """An id made from JSON text equals the one made from the values."""
    key = json.dumps({f"c{place}": value for place, value in enumerate(values)}).encode("utf-8", "surrogatepass")
    assert row_id_of(key) == names.row_id(values)


def test_a_schema_is_read_from_its_record() -> None:
    """A table's schema is read from its record on `__schema`."""
    table = TableSchema.from_record(json.dumps(RECORD).encode())
    assert table == TableSchema(
        "public", "customers", "shop.public.customers", ("id",), (SchemaColumn("id", "int8", -1),)
    )
    assert str(table) == "public.customers"


def test_a_newer_record_is_refused() -> None:
    """A schema record of a newer format is refused."""
    with pytest.raises(RefusedError, match="format 2"):
        TableSchema.from_record(json.dumps({**RECORD, "format": 2}).encode())


def test_every_registered_kind_opens_without_a_server() -> None:
    """Opening a store makes no connection, and an unregistered kind is wrong use."""
    for settings in (RedisConfig(url=Url("redis://127.0.0.1:1/0")), IcebergConfig(path=Location("x"))):
        store = open_store("cache", settings, "shop")
        assert is_store_kind(store.kind)
        store.close()
    with pytest.raises(UsageError, match="tape"):
        open_store("archive", SimpleNamespace(kind="tape"), "shop")

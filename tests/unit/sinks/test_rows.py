"""Row ids, schemas and positions: what all stores share."""

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
from sinks.contract import SchemaColumn, TableSchema
from sinks.registry import KINDS, open_store
from sinks.rows import row_id_of

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
    """A text as it is, anything else as JSON spells it, several as a JSON array of strings."""
    assert row_id_of(key) == expected


@given(values=st.lists(st.text(), min_size=1, max_size=3))
def test_an_id_is_the_one_that_names_makes(values: list[str]) -> None:
    """Whatever the texts: the same as from the values themselves."""
    key = json.dumps({f"c{place}": value for place, value in enumerate(values)}).encode("utf-8", "surrogatepass")
    assert row_id_of(key) == names.row_id(values)


def test_a_schema_is_read_from_its_record() -> None:
    """As it stands on `__schema`."""
    table = TableSchema.from_record(json.dumps(RECORD).encode())
    assert table == TableSchema(
        "public", "customers", "shop.public.customers", ("id",), (SchemaColumn("id", "int8", -1),)
    )
    assert str(table) == "public.customers"


def test_a_newer_record_is_refused() -> None:
    """It may mean something that this Tailrace does not know."""
    with pytest.raises(RefusedError, match="format 2"):
        TableSchema.from_record(json.dumps({**RECORD, "format": 2}).encode())


def test_every_registered_kind_opens_without_a_server() -> None:
    """Opening connects to nothing; a kind that is not registered is wrong use."""
    for settings in (RedisConfig(url=Url("redis://127.0.0.1:1/0")), IcebergConfig(path=Location("x"))):
        store = open_store("cache", settings, "shop")
        assert store.kind in KINDS
        store.close()
    with pytest.raises(UsageError, match="tape"):
        open_store("archive", SimpleNamespace(kind="tape"), "shop")

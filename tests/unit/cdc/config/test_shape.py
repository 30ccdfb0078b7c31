"""`tables` and `[stores.NAME.shape."schema.table"]` are read, refused with the key's name, and recorded as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config import Config, TableName, TableShape, parse_config
from cdc.config.toml.report import as_plain, as_toml
from cdc.errors import ConfigError

_REST = """
[source]
dsn = "postgresql://localhost/shop"
[kafka]
bootstrap = "localhost:9092"
prefix = "shop"
[stores.search]
kind = "elasticsearch"
url = "http://localhost:9200"
"""


def _config(text: str) -> Config:
    return parse_config(_REST + text, file=Path("/etc/tailrace.toml"), environment={})


def _problems(text: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as raised:
        _config(text)
    return raised.value.problems


def test_a_store_gets_the_tables_that_it_lists() -> None:
    """A store gets the tables listed by name or schema, or all if it lists none."""
    assert _config("").stores["search"].gets("public", "orders")
    store = _config('tables = ["public.orders", "shop.*"]').stores["search"]
    assert [store.gets(*name) for name in (("public", "orders"), ("shop", "x"), ("public", "x"))] == [True, True, False]


def test_a_shape_is_read() -> None:
    """Columns, where and select are read per table."""
    store = _config(
        """
        [stores.search.shape."public.orders"]
        columns = ["status"]
        where = "total > 0"
        [stores.search.shape."public.orders".select]
        cents = "total * 100"
        """
    ).stores["search"]
    shape = store.shape[TableName("public", "orders")]
    assert shape == TableShape(columns=("status",), where="total > 0", select={"cents": "total * 100"})
    assert store.shape_of("public", "orders") is shape
    assert store.shape_of("public", "customers") is None


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('[stores.search.shape."public.orders"]', "[stores.search.shape] public.orders", "needs `columns`"),
        ('[stores.search.shape."public.orders"]\nwhere = " "', "] where", "must not be empty"),
        ('[stores.search.shape."public.orders"]\nwhere = "a"\nfilter = "x"', "] filter", "unknown key"),
        ('[stores.search.shape."public.orders"]\nselect = {a = ""}', "] select", "`a` must not be empty"),
        ('[stores.search.shape."orders"]\nwhere = "x"', "shape] orders", "schema.table"),
        ('tables = ["public.a"]\n[stores.search.shape."public.b"]\nwhere = "x"', "] shape", "public.b is not among"),
        ('tables = ["orders"]', "] tables", "schema.table"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, place: str, what: str) -> None:
    """A mistake is reported with line, section and key."""
    ((found_place, found),) = _problems(text)
    assert place in found_place
    assert found_place.startswith("line ")
    assert what in found


def test_the_same_shape_has_the_same_text() -> None:
    """The text of a shape, with which a store compares its own, ignores order and includes everything else."""
    one = TableShape(columns=("b", "a"), where="x > 0", select={"f": "1", "e": "2"})
    other = TableShape(columns=("a", "b"), where="x > 0", select={"e": "2", "f": "1"})
    assert one.text() == other.text()
    assert TableShape.from_text(one.text()).text() == one.text()
    assert one.text() != TableShape(columns=("b", "a"), where="x > 1", select=one.select).text()
    assert TableShape.from_text(TableShape(columns=()).text()).columns == ()


def test_a_shape_is_printed_as_it_was_written() -> None:
    """`tailrace config` prints a shape as it was written."""
    text = '[stores.search.shape."public.orders"]\nwhere = "total > 0"\n'
    assert 'where = "total > 0"' in as_toml(as_plain(_config(text)))

"""Several processes may complete the same generation switch of a warehouse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cdc.config import IcebergConfig
from cdc.stores.contract import SchemaColumn, TableSchema
from sinks.iceberg import naming
from sinks.iceberg import store as module
from sinks.iceberg.name_switch import exchange_tables
from sinks.iceberg.naming import Identifier
from sinks.iceberg.store import IcebergStore

_TABLES = [
    TableSchema(
        "public", name, f"p.public.{name}", ("id",), (SchemaColumn("id", "int8", -1), SchemaColumn("v", "text", -1))
    )
    for name in ("t", "u")
]


class _WithoutTransactions:
    """A catalog that is no database: tables are renamed one by one."""

    engine = None

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


@pytest.fixture(params=["database", "renames"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[IcebergStore, IcebergStore]]:
    """Two processes' views of one warehouse."""
    settings = IcebergConfig(path=str(tmp_path / "warehouse"))
    with (
        closing(IcebergStore("warehouse", settings, "p")) as writer,
        closing(IcebergStore("warehouse", settings, "p")) as reader,
    ):
        if request.param == "renames":
            for each in (writer, reader):
                each.__dict__["catalog"] = _WithoutTransactions(each.catalog)
        yield writer, reader


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "another"])
@pytest.mark.parametrize("moved", ["one", "all", "noted"])
def test_another_process_completes_the_switch_first(
    stores: tuple[IcebergStore, IcebergStore], monkeypatch: pytest.MonkeyPatch, *, is_first: bool, moved: str
) -> None:
    """A process completes the switch correctly when another one moves one table or all of them meanwhile."""
    writer, reader = stores
    if not is_first:
        writer.switch(writer.create_generation(_TABLES))
    before = {} if is_first else _ids(writer, [naming.current_table(table) for table in _TABLES])
    made = writer.create_generation(_TABLES)
    built = _ids(writer, [naming.generation_table(table, made.number) for table in _TABLES])
    writer.change(lambda state: msgspec.structs.replace(state, switching=made.number))
    calls = 0

    def late(catalog: Any, pairs: Sequence[tuple[Identifier, Identifier]], **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1 and moved == "noted":
            writer._finish_switch()
        elif calls == 1:
            exchange_tables(writer.catalog, pairs[:1] if moved == "one" else pairs, **options)
        exchange_tables(catalog, pairs, **options)

    monkeypatch.setattr(module, "exchange_tables", late)
    serving = reader.serving()
    assert serving is not None
    assert serving.number == made.number
    assert _ids(reader, [naming.current_table(table) for table in _TABLES]) == built
    if not is_first:
        assert _ids(reader, [naming.generation_table(table, 1) for table in _TABLES]) == before
    assert writer.state().switching is None


def _ids(store: IcebergStore, names: Sequence[Identifier]) -> dict[str, Any]:
    """The table at each name, by the table's own id."""
    found = {name[-1]: store.tables.load(name) for name in names}
    return {name: table.metadata.table_uuid for name, table in found.items() if table is not None}

"""Switching a warehouse's readers while other clients look at it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.config import IcebergConfig
from sinks.contract import SchemaColumn, TableSchema
from sinks.iceberg import store as store_module
from sinks.iceberg.store import IcebergStore

TABLE = TableSchema("public", "t", "p.public.t", ("id",), (SchemaColumn("id", "int8", -1),))


@pytest.mark.parametrize("serving_before", [False, True])
def test_two_clients_end_the_same_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving_before: bool) -> None:
    """A client that lists the tables just before another one exchanges them finds the switch done, and no error."""
    settings = IcebergConfig(path=str(tmp_path / "warehouse"))
    exchange = store_module.exchange_tables
    with (
        closing(IcebergStore("warehouse", settings, "p")) as first,
        closing(IcebergStore("warehouse", settings, "p")) as second,
    ):
        if serving_before:
            first.switch(first.create_generation([TABLE]))
        generation = first.create_generation([TABLE])
        overtaken = []

        def overtake(*arguments: Any, **options: Any) -> None:
            if not overtaken:
                overtaken.append(True)
                second.serving()  # ends the switch that `first` is about to end
            exchange(*arguments, **options)

        monkeypatch.setattr(store_module, "exchange_tables", overtake)
        first.switch(generation)

        for store in (first, second):
            serving = store.serving()
            assert serving is not None
            assert serving.number == generation.number
        assert first.tables.load(("public", "t")) is not None
        assert first.tables.load((f"public__g{generation.number}", "t")) is None

"""The example of docs/guides/writing-a-sink.md, as a distribution of its own, passes the contract's tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

from cdc.stores.testing.row_store_contract import OpenStore, RowStoreContract
from tests.harness.stores.example_sink import MODULE, install_example


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("sqlite_sink"))


@pytest.fixture(scope="module")
def module(installed: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE)


class TestSqlite(RowStoreContract):
    @pytest.fixture
    def open_store(self, module: ModuleType, tmp_path: Path) -> OpenStore:
        settings = module.SqliteConfig(path=tmp_path / "store.db")
        return lambda: module.SqliteStore("store", settings, "shop")


def test_the_wheel_names_its_kind_in_every_group(installed: Path) -> None:
    """Settings, store and scan are found by the kind's name."""
    (found,) = distributions(path=[str(installed)])
    groups = {each.group: each.name for each in found.entry_points}
    assert groups == {"tailrace.settings": "sqlite", "tailrace.stores": "sqlite", "tailrace.scans": "sqlite"}

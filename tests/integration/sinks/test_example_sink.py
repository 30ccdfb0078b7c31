"""The example of docs/guides/writing-a-sink.md, as a distribution of its own, passes the contract's tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

from cdc.config import parse_config
from cdc.errors import ConfigError
from cdc.stores.testing.row_store_contract import OpenStore, RowStoreContract
from tests.harness.stores.example_sink import MODULE, install_example

_CONFIG = """
[source]
dsn = "postgresql://localhost/shop"
[kafka]
bootstrap = "localhost:9092"
prefix = "shop"
[stores.lite]
kind = "sqlite"
{keys}
"""


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


def test_the_config_reads_its_section(module: ModuleType, tmp_path: Path) -> None:
    """Its keys are read and checked like those of the built-in kinds. A path starts from the config's folder."""
    text = _CONFIG.format(keys='path = "shop.db"')
    store = parse_config(text, file=tmp_path / "tailrace.toml", environment={}).stores["lite"]
    assert isinstance(store, module.SqliteConfig)
    assert (store.kind, store.path, store.parallelism) == ("sqlite", tmp_path / "shop.db", 2)
    with pytest.raises(ConfigError, match="path: missing"):
        parse_config(_CONFIG.format(keys=""), file=tmp_path / "tailrace.toml", environment={})
    with pytest.raises(ConfigError, match="one of elasticsearch, opensearch, redis, iceberg, sqlite"):
        parse_config(_CONFIG.format(keys="").replace('"sqlite"', '"sqlit"'), file=tmp_path / "t.toml", environment={})

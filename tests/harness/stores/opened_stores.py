"""Stores for tests, opened on the run's servers, with short ways to make tables and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc.config.stores import ElasticsearchConfig, OpenSearchConfig, RedisConfig
from cdc.secrets import Url
from cdc.stores.contract import RowStore
from cdc.stores.registry import open_row_store
from cdc.stores.testing.rows import apply, change, rows, table, truncate

__all__ = ["KINDS", "apply", "change", "rows", "settings_of", "store_of", "table", "truncate"]

KINDS = ("elasticsearch", "redis")


def store_of(
    kind: str, address: str, prefix: str, name: str = "store", settings: Mapping[str, Any] | None = None
) -> RowStore:
    return open_row_store(name, settings_of(kind, address, settings or {}), prefix)


def settings_of(kind: str, address: str, settings: Mapping[str, Any]) -> Any:
    kinds: dict[str, Any] = {"elasticsearch": ElasticsearchConfig, "opensearch": OpenSearchConfig, "redis": RedisConfig}
    return kinds[kind](url=Url(address), **settings)

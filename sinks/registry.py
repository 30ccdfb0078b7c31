"""Maps each `kind` of `[stores.NAME]` to its class. The class's module is imported when such a store is opened."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

from cdc.errors import UsageError
from sinks.contract import Store, StoreKind

KINDS: Final = {
    "elasticsearch": "sinks.elasticsearch.store:ElasticsearchStore",
    "iceberg": "sinks.iceberg.store:IcebergStore",
    "redis": "sinks.redis.store:RedisStore",
}


def open_store(name: str, settings: Any, prefix: str) -> Store:
    """Open the store of `[stores.NAME]`. `prefix` is the pipeline's. The store connects on first use."""
    place = KINDS.get(settings.kind)
    if place is None:
        known = ", ".join(sorted(KINDS))
        raise UsageError(
            f"Store `{name}` has kind {settings.kind}, which sync does not support.", remedy=f"Known: {known}."
        )
    module, _, attribute = place.partition(":")
    return cast("StoreKind", getattr(import_module(module), attribute))(name, settings, prefix)

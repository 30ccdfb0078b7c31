"""Which class serves which `kind` of `[stores.NAME]`: one line for each, imported only when it is opened."""

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
    """The store of `[stores.NAME]`; `prefix` is the pipeline's. Connects when it is first used."""
    place = KINDS.get(settings.kind)
    if place is None:
        known = ", ".join(sorted(KINDS))
        raise UsageError(
            f"Store `{name}` has kind {settings.kind}, which cannot be synced here.", remedy=f"Known: {known}."
        )
    module, _, attribute = place.partition(":")
    return cast("StoreKind", getattr(import_module(module), attribute))(name, settings, prefix)

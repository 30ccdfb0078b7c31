"""Whether a Redis server can be a store: it answers, keeps what it is given, and lets us do what we will do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import redis

from cdc.config.stores import RedisConfig as Settings
from cdc.errors import RefusedError
from cdc.stores.contract import StoreCheck, TableSchema
from sinks.redis import scripts
from sinks.redis.client import Script, translated
from sinks.redis.naming import row_prefix, state_key

OLDEST: Final = (5, 0)
_ANY_TABLE: Final = TableSchema("a", "a", "a", (), ())


def check_redis(client: redis.Redis, settings: Settings, prefix: str, store: str) -> Iterator[StoreCheck]:
    try:
        with translated():
            info: Any = client.info()
    except RefusedError as error:
        yield StoreCheck("fail", error.message, error.remedy)
        return
    yield from _version(info)
    yield from _role(info)
    yield from _eviction(info, settings)
    yield from _persistence(info)
    yield from _permissions(client, prefix, store)


def _version(info: dict[str, Any]) -> Iterator[StoreCheck]:
    version = str(info.get("redis_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        yield StoreCheck("ok", f"version {version}")
    else:
        yield StoreCheck("fail", f"version {version} is too old", "Redis 5 or later is needed.")


def _role(info: dict[str, Any]) -> Iterator[StoreCheck]:
    if info.get("cluster_enabled"):
        yield StoreCheck(
            "fail", "the server runs in cluster mode", "Use a server without it: one script call covers many keys."
        )
    if info.get("role") not in (None, "master"):
        yield StoreCheck("fail", "the server is a replica: it takes no writes", "Name the primary in the store's url.")


def _eviction(info: dict[str, Any], settings: Settings) -> Iterator[StoreCheck]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        yield StoreCheck("ok", "maxmemory-policy is noeviction")
    elif settings.eviction:
        yield StoreCheck("warn", f"maxmemory-policy is {policy}: rows may be missing, as the config says")
    else:
        yield StoreCheck(
            "fail",
            f"maxmemory-policy is {policy}: rows would vanish, versions and the position too",
            "Set maxmemory-policy noeviction, or say `eviction = true` in the store's config.",
        )


def _persistence(info: dict[str, Any]) -> Iterator[StoreCheck]:
    if info.get("aof_enabled"):
        yield StoreCheck("ok", "the append-only file is on")
    else:
        yield StoreCheck(
            "warn",
            "the append-only file is off: a restart loses rows, and the store is built again from the topics",
            "Set appendonly yes.",
        )


def _permissions(client: redis.Redis, prefix: str, store: str) -> Iterator[StoreCheck]:
    """Tried on what is not there, so nothing changes."""
    try:
        with translated():
            client.hdel(state_key(prefix, store), "no such field")
            client.hdel(row_prefix(prefix, _ANY_TABLE), "no such field")
        Script(client, scripts.COUNT)([row_prefix(prefix, _ANY_TABLE)], [])
    except RefusedError as error:
        yield StoreCheck("fail", error.message, error.remedy)
    else:
        yield StoreCheck("ok", f"keys under {prefix}: can be written by scripts")

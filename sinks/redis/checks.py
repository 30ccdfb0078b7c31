"""Checks whether a Redis server can be a store: version, role, eviction, persistence and permissions."""

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
    """Yield the result of every check. Changes nothing."""
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
        yield StoreCheck("fail", f"version {version} is too old", "Use Redis 5 or later.")


def _role(info: dict[str, Any]) -> Iterator[StoreCheck]:
    if info.get("cluster_enabled"):
        yield StoreCheck(
            "fail",
            "the server runs in cluster mode",
            "Use a server without cluster mode: each script call accesses many keys.",
        )
    if info.get("role") not in (None, "master"):
        yield StoreCheck(
            "fail", "the server is a replica and accepts no writes", "Set the store's url to the primary's address."
        )


def _eviction(info: dict[str, Any], settings: Settings) -> Iterator[StoreCheck]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        yield StoreCheck("ok", "maxmemory-policy is noeviction")
    elif settings.eviction:
        yield StoreCheck("warn", f"maxmemory-policy is {policy}: rows may be missing, as the config allows")
    else:
        yield StoreCheck(
            "fail",
            f"maxmemory-policy is {policy}: Redis would evict rows, their versions and the position",
            "Set maxmemory-policy noeviction, or set `eviction = true` in the store's config.",
        )


def _persistence(info: dict[str, Any]) -> Iterator[StoreCheck]:
    if info.get("aof_enabled"):
        yield StoreCheck("ok", "the append-only file is on")
    else:
        yield StoreCheck(
            "warn",
            "the append-only file is off: a restart loses rows, and the sync then rebuilds the store from the topics",
            "Set appendonly yes.",
        )


def _permissions(client: redis.Redis, prefix: str, store: str) -> Iterator[StoreCheck]:
    """Check the permissions with commands on fields and keys that do not exist, so that nothing changes."""
    try:
        with translated():
            client.hdel(state_key(prefix, store), "no such field")
            client.hdel(row_prefix(prefix, _ANY_TABLE), "no such field")
        Script(client, scripts.COUNT)([row_prefix(prefix, _ANY_TABLE)], [])
    except RefusedError as error:
        yield StoreCheck("fail", error.message, error.remedy)
    else:
        yield StoreCheck("ok", f"scripts can write keys under {prefix}:")

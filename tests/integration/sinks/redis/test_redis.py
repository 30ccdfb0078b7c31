"""What Redis promises beyond the contract of a store: its hashes, noticed loss, rebuilds in place, rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.secrets import Secret
from cdc.stores.contract import Generation, Position, PositionLostError, Store, TableSchema
from tests.golden.documented import read_examples
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.opened_stores import apply, change, rows, store_of, table, truncate

StartRedis = Callable[..., OwnRedis]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as opened:
        yield opened


@pytest.fixture
def store(redis_url: str, prefix: str) -> Iterator[Store]:
    opened = store_of("redis", redis_url, prefix)
    yield opened
    opened.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: Store, orders: TableSchema) -> Generation:
    return store.create_generation([orders])


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    started: list[OwnRedis] = []

    def start(**settings: str) -> OwnRedis:
        started.append(OwnRedis(tmp_path, **settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


def test_a_row_is_one_hash(
    client: redis.Redis, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A hash has the row's JSON in `row` and its version in `version`; a delete keeps the version for a time."""
    apply(store, generation, orders, [change(42, 5, {"note": "a"}), change(7, 5)])
    key = f"{prefix}:public.orders:42"
    assert json.loads(str(client.hget(key, "row"))) == {"id": 42, "note": "a"}
    assert client.hget(key, "version") == "0000000000000028.00000001"
    assert client.ttl(key) == -1
    apply(store, generation, orders, [change(42, 6, gone=True)])
    assert client.hget(key, "row") is None
    assert client.hget(key, "version") == "0000000000000030.00000001"
    assert 0 < int(str(client.ttl(key))) <= 24 * 3600
    apply(store, generation, orders, [change(42, 7)])
    assert client.ttl(key) == -1


def test_every_documented_value_is_kept(store: Store, generation: Generation, orders: TableSchema) -> None:
    """The store keeps the bytes of every documented value."""
    values = [json.loads(example.json) for example in read_examples()]
    changes = [change(place, 5, {"note": value}) for place, value in enumerate([*values, "\u0000", "9" * 100_000])]
    assert apply(store, generation, orders, changes) == []
    assert {each.id: each.row for each in store.contents(generation, orders)} == {each.id: each.row for each in changes}


def test_scripts_that_the_server_forgot_are_loaded_again(
    client: redis.Redis, store: Store, generation: Generation, orders: TableSchema
) -> None:
    """A writer loads its scripts again after `SCRIPT FLUSH`."""
    writer = store.writer_factory(generation)()
    writer.apply(orders, [change(1, 5)])
    client.script_flush()
    writer.apply(orders, [change(2, 5)])
    writer.close()
    assert set(rows(store, generation, orders)) == {"1", "2"}


def test_a_rebuild_in_place_removes_rows_that_are_gone(
    client: redis.Redis, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A rebuild removes rows that it did not find, and keeps rows that it found and rows written after it."""
    other = table(prefix, name="other")
    apply(store, generation, other, [change(1, 5)])
    apply(store, generation, orders, [change(1, 5), change(2, 5), change(3, 9), change(4, 30), change(5, 6, gone=True)])
    second = store.create_generation([orders])
    apply(store, second, orders, [change(1, 5), change(3, 8, {"note": "older"}), change(6, 9)])
    apply(store, generation, orders, [change(1, 31), change(7, 32)])
    store.switch(second)
    assert store.delete_stale_rows(second, orders, Version(20 * 8, 0)) == 1
    assert set(rows(store, second, orders)) == {"1", "3", "4", "6", "7"}
    assert "note" not in rows(store, second, orders)["3"]
    assert int(str(client.ttl(f"{prefix}:public.orders:2"))) > 0
    assert set(rows(store, second, other)) == {"1"}
    assert store.delete_stale_rows(second, orders, Version(20 * 8, 0)) == 0


def test_every_row_of_another_pipeline_goes_with_the_switch(
    client: redis.Redis, store: Store, orders: TableSchema, prefix: str
) -> None:
    """A switch removes all rows of another pipeline, also after an abandoned build, and no key of an application.

    Rows of a release without pipeline ids count as another pipeline's.
    """
    client.hset(f"{prefix}:app.settings:1", mapping={"version": "7", "generation": "0"})
    client.set(f"{prefix}:app.name:1", "x")
    other = table(prefix, name="only_old")
    old = store.create_generation([orders, other])
    apply(store, old, other, [change(1, 100)])
    apply(store, old, orders, [change(1, 100), change(2, 100)])
    store.switch(old)
    given_up = store.create_generation([orders], "new")
    apply(store, given_up, orders, [change(2, 5)])
    store.drop(given_up)
    new = store.create_generation([orders], "new")
    apply(store, new, orders, [change(2, 5), change(3, 5)])
    assert set(rows(store, new, orders)) == {"1", "2", "3"}, "readers keep the old rows until the switch"
    store.switch(new)
    assert (set(rows(store, new, orders)), rows(store, new, other)) == ({"2", "3"}, {})
    assert client.hget(f"{prefix}:app.settings:1", "version") == "7"
    assert client.get(f"{prefix}:app.name:1") == "x"


def test_a_rebuild_by_the_same_pipeline_goes_by_versions(store: Store, orders: TableSchema) -> None:
    """Rows that a sync writes during a rebuild are newer than the rebuild's, and win."""
    first = store.create_generation([orders], "same")
    store.switch(first)
    apply(store, first, orders, [change(1, 5)])
    second = store.create_generation([orders], "same")
    apply(store, first, orders, [change(1, 9, {"note": "newer"}), change(2, 9)])
    apply(store, second, orders, [change(1, 5, {"note": "older"})])
    store.switch(second)
    assert rows(store, second, orders) == {"1": {"id": 1, "note": "newer"}, "2": {"id": 2}}


def test_a_flush_is_noticed(start_redis: StartRedis, prefix: str) -> None:
    """`FLUSHALL` removes the position; the driver cannot save over it and finds no generation."""
    server = start_redis()
    store = store_of("redis", server.url, prefix)
    orders = table(prefix)
    generation = store.create_generation([orders])
    store.switch(generation)
    store.take(generation, "one")
    apply(store, generation, orders, [change(1, 5)])
    with server.client() as client:
        client.flushall()
    with pytest.raises(PositionLostError):
        store.save_position(generation, Position())
    assert store.position(generation) is None
    assert store.serving() is None
    for attempt in (store.settle, store.switch):
        with pytest.raises(PositionLostError):
            attempt(generation)
    store.ensure_table(generation, orders)
    assert (store.serving(), store.list_generations()) == (None, []), "nothing of it comes back"
    again = store.create_generation([orders])
    store.switch(again)
    store.take(again, "one")
    store.save_position(again, Position())
    store.close()


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_a_restart_is_noticed(start_redis: StartRedis, prefix: str, appendonly: str) -> None:
    """After `kill -9` during a batch acknowledged rows may be lost, so the position is not advanced."""
    server = start_redis(appendonly=appendonly, save="")
    store = store_of("redis", server.url, prefix)
    orders = table(prefix)
    generation = store.create_generation([orders])
    store.switch(generation)
    before = store.take(generation, "one")
    apply(store, generation, orders, [change(1, 5)])
    server.kill()
    with pytest.raises(TransientError):
        apply(store, generation, orders, [change(2, 5)])
    server.start()
    with pytest.raises(PositionLostError):
        apply(store, generation, orders, [change(2, 5)])
    with pytest.raises(PositionLostError):
        store.save_position(generation, Position(lsn=7))
    assert store.position(generation) == (before if appendonly == "yes" else None)
    if appendonly == "yes":
        store.take(generation, "one")
        assert store.save_position(generation, Position(lsn=7)).lsn == 7
    store.close()


def test_a_full_server_is_waited_for(start_redis: StartRedis, prefix: str) -> None:
    """When out of memory the batch fails as a whole, nothing is evicted, and with more memory it succeeds."""
    server = start_redis(maxmemory="3mb", save="")
    store = store_of("redis", server.url, prefix)
    orders = table(prefix)
    generation = store.create_generation([orders])
    apply(store, generation, orders, [change(0, 5)])
    large = [change(key, 5, {"note": "x" * 10_000}) for key in range(1000)]
    with pytest.raises(TransientError, match="out of memory"):
        apply(store, generation, orders, large)
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
    apply(store, generation, orders, large)
    assert store.count(generation, orders) == 1000
    store.close()


def test_eviction_must_be_allowed_by_the_config(start_redis: StartRedis, prefix: str) -> None:
    """A server that evicts keys is refused unless the config allows it."""
    server = start_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru", appendonly="yes")
    for meant, level in ((False, "fail"), (True, "warn")):
        store = store_of("redis", server.url, prefix, settings={"eviction": meant})
        assert [each.level for each in store.check() if "maxmemory-policy" in each.what] == [level]
        store.close()


# As in docs/reference/stores.md.
ALLOWED = [
    *("+@connection", "+info", "+scan", "+eval", "+evalsha", "+script|load", "+get", "+set", "+expire", "+persist"),
    *("+hget", "+hmget", "+hgetall", "+hset", "+hsetnx", "+hdel", "+hexists", "+hincrby"),
]


def test_an_acl_user_needs_only_its_prefix(client: redis.Redis, redis_url: str, prefix: str) -> None:
    """The documented permissions are enough; a write under another prefix is denied and does not move the position."""
    name = f"{prefix}-user"
    client.execute_command("ACL", "SETUSER", name, "on", ">secret", f"~{prefix}:*", *ALLOWED)
    try:
        settings = {"username": name, "password": Secret("secret")}
        store = store_of("redis", redis_url, prefix, settings=settings)
        assert {each.level for each in store.check()} == {"ok"}
        orders = table(prefix)
        generation = store.create_generation([orders])
        store.take(generation, "one")
        store.switch(generation)
        apply(store, generation, orders, [change(1, 5), change(2, 5)])
        truncate(store, generation, orders, Version(40, 0))
        store.delete_stale_rows(generation, orders, Version(80, 0))
        store.save_position(generation, Position())
        assert store.count(generation, orders) == len(rows(store, generation, orders)) == 2
        client.execute_command("ACL", "SETUSER", name, "-hset")
        with pytest.raises(RefusedError):
            apply(store, generation, orders, [change(3, 5)])
        with pytest.raises(RefusedError):
            store.save_position(generation, Position())
        store.close()
        elsewhere = store_of("redis", redis_url, f"{prefix}x", settings=settings)
        assert "fail" in {each.level for each in elsewhere.check()}
        with pytest.raises(RefusedError):
            elsewhere.create_generation([])
        elsewhere.close()
    finally:
        client.execute_command("ACL", "DELUSER", name)


def test_a_wrong_password_is_refused(client: redis.Redis, redis_url: str, prefix: str) -> None:
    """A wrong password is refused at once, without showing it."""
    name = f"{prefix}-user"
    client.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all")
    try:
        store = store_of("redis", redis_url, prefix, settings={"username": name, "password": Secret("hunter2")})
        with pytest.raises(RefusedError) as refused:
            store.serving()
        assert "hunter2" not in str(refused.value)
        store.close()
    finally:
        client.execute_command("ACL", "DELUSER", name)

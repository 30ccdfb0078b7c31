"""When a store is down, flushed, taken over or rejects a row, only that store is affected, and it recovers
automatically.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from elasticsearch import Elasticsearch

from cdc.stores.contract import caught_up_at
from spark_jobs.sync.retry import retry
from spark_jobs.tasks.parked_rows import read_parked
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.elasticsearch_snapshots import Snapshots
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeStores = Callable[..., StorePipeline]


@pytest.fixture
def make_stores(make_pipeline: MakePipeline, spark: SparkSession) -> MakeStores:
    def make(**stores: dict[str, Any]) -> StorePipeline:
        pipeline = make_pipeline()
        pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        return StorePipeline(pipeline, spark, stores)

    return make


def test_a_store_that_is_down_holds_up_no_other(
    make_stores: MakeStores, elasticsearch_url: str, redis_url: str, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """Search continues while the cache is down, and the cache catches up when it is back."""
    address = urlsplit(redis_url)
    proxy = start_proxy(address.hostname or "", address.port or 0)
    stores = make_stores(
        search={"kind": "elasticsearch", "url": elasticsearch_url},
        cache={"kind": "redis", "url": f"redis://{proxy.address}/0"},
    )
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 50) i")
        stores.assert_same("t")
        proxy.cut()
        database.execute("UPDATE t SET v = 'two' WHERE id <= 25; DELETE FROM t WHERE id > 40")
        stores.assert_same("t", stores=["search"])
        proxy.restore()
        stores.assert_same("t")


def test_a_cache_that_lost_what_it_had_is_filled_again(
    make_stores: MakeStores, spark: SparkSession, tmp_path: Path
) -> None:
    """Sync notices a cache that came back with older data or was flushed, and reads again from the cache's position.

    Both happen while the sync runs and no change is written.
    """
    redis = OwnRedis(tmp_path, save="")
    stores = make_stores(cache={"kind": "redis", "url": redis.url})
    database = stores.pipeline.database
    stores.pipeline.start()
    try:
        with stores.syncing(), redis.client() as client:
            database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 50) i; DELETE FROM t WHERE id > 40")
            stores.assert_same("t")
            client.save()
            database.execute(
                "UPDATE t SET v = 'two' WHERE id < 9; DELETE FROM t WHERE id = 9; INSERT INTO t VALUES (60)"
            )
            stores.assert_same("t")
            redis.kill()
            redis.start()
            stores.assert_same("t")
            client.flushall()
            stores.wait_until_served()
            stores.assert_same("t")
            assert_clean(stores.config, spark, "cache")
    finally:
        redis.close()


def test_a_snapshot_that_holds_a_position_ahead_of_its_rows(make_stores: MakeStores, elasticsearch_url: str) -> None:
    """A restored Elasticsearch snapshot whose position is ahead of its rows is not trusted.

    Elasticsearch takes the shards of a snapshot at different moments. A new generation is built from the topics,
    readers switch to it, and the restored one is removed.
    """
    stores = make_stores(search={"kind": "elasticsearch", "url": elasticsearch_url})
    database, prefix = stores.pipeline.database, stores.pipeline.prefix
    rows, own = f"{prefix}.public.t-g1", f"{prefix}.__tailrace-g1"
    stores.pipeline.start()
    with Elasticsearch(elasticsearch_url, request_timeout=60) as client, stores.syncing() as syncs:
        snapshots = Snapshots(client, prefix)
        database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 50) i")
        stores.assert_same("t")
        snapshots.make("rows", [rows])
        database.execute("UPDATE t SET v = 'two' WHERE id < 9; DELETE FROM t WHERE id = 30")
        stores.assert_same("t")
        snapshots.make("own", [own])
        client.indices.delete(index=[rows, own])
        for name, index in (("rows", rows), ("own", own)):
            # Without a wait, or the sync may make the second index before it is restored.
            snapshots.restore(name, [index], wait=False)
        eventually(lambda: _numbers(stores) == [2], 60, "the restored generation to be replaced")
        stores.assert_same("t")
        assert syncs["search"].refused is None
        snapshots.close()


def _numbers(stores: StorePipeline) -> list[int]:
    with stores.opened("search") as (store, _):
        return [each.number for each in store.list_generations()]


def test_of_two_drivers_one_stops(make_stores: MakeStores, redis_url: str) -> None:
    """The later driver gets the store; the earlier one stops with the reason."""
    stores = make_stores(cache={"kind": "redis", "url": redis_url})
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing() as first:
        database.execute("INSERT INTO t VALUES (1, 'one')")
        stores.assert_same("t")
        with stores.syncing() as second:
            eventually(lambda: first["cache"].refused, 60, "the first driver to stop")
            assert "taken over" in str(first["cache"].refused)
            database.execute("INSERT INTO t VALUES (2, 'two')")
            stores.assert_same("t")
            assert second["cache"].refused is None


def test_a_replay_changes_nothing(make_stores: MakeStores, redis_url: str, elasticsearch_url: str) -> None:
    """Records that are written again, as after a driver's death before it stored its position, change nothing."""
    stores = make_stores(
        search={"kind": "elasticsearch", "url": elasticsearch_url}, cache={"kind": "redis", "url": redis_url}
    )
    database = stores.pipeline.database
    database.execute("INSERT INTO t VALUES (0, 'before')")
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 20) i")
        database.execute(
            "UPDATE t SET v = 'two'; DELETE FROM t WHERE id > 10; TRUNCATE t; INSERT INTO t VALUES (3, 'x')"
        )
        database.execute("DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (4, 'y')")
        stores.assert_same("t")
    held = {name: _versions(stores, name) for name in stores.names}
    for name in stores.names:
        with stores.opened(name) as (store, serving):
            position = store.take(serving, "test")
            topics = {
                topic: type(place)(place.topic_id, tuple(0 for _ in place.next_offsets))
                for topic, place in position.topics.items()
            }
            long_ago = type(position)(topics=topics)
            store.save_position(serving, caught_up_at(long_ago, position.caught_up_broker_ms))
    with stores.syncing():
        stores.assert_same("t")
    assert {name: _versions(stores, name) for name in stores.names} == held


def test_a_row_that_the_store_denies_is_parked_alone(make_stores: MakeStores, elasticsearch_url: str) -> None:
    """A row that the store rejects is parked and listed without its values, settled once it fits, and all other rows
    flow.
    """
    stores = make_stores(
        search={
            "kind": "elasticsearch",
            "url": elasticsearch_url,
            "mapping": {"public.t.v": {"type": "integer"}},
        }
    )
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT i, i::text FROM generate_series(1, 20) i")
        database.execute("INSERT INTO t VALUES (21, 'secret word'), (22, '22')")
        stores.wait()
        (parked,) = read_parked(stores.config)
        assert (parked.store, parked.key, parked.topic) == ("search", '{"id":21}', stores.pipeline.topic("t"))
        assert "secret" not in parked.reason
        (still,) = retry(stores.config, "search", [parked])
        assert not still.settled
        database.execute("UPDATE t SET v = '21' WHERE id = 21")
        stores.assert_same("t")
        (settled,) = retry(stores.config, "search", [parked])
        assert settled.settled
        assert read_parked(stores.config) == []


def _versions(stores: StorePipeline, name: str) -> dict[str, tuple[object, bytes | None]]:
    (schema,) = stores.tables().values()
    with stores.opened(name) as (store, serving):
        return {row.id: (row.version, row.row) for row in store.contents(serving, schema, tombstones=True)}

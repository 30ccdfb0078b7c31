"""A store without space is retried while the others continue, and catches up without intervention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from elasticsearch import Elasticsearch

from cdc.positions.wait import wait_for
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DISK: Final = "cluster.routing.allocation.disk"
_WATERMARKS: Final = ("low", "high", "flood_stage")


class FullDisk:
    """Makes Elasticsearch consider its disk full while less than `free` is free; the prefix's indices become
    read-only.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._client = Elasticsearch(url)
        self._indices = f"{prefix}*"

    def begin(self) -> None:
        self._demand("1000000gb")
        eventually(lambda: all(self._blocks()), 60, "the flood stage")

    def end(self) -> None:
        self._demand("1b")
        eventually(lambda: not any(self._blocks()), 60, "the end of the flood stage")

    def close(self) -> None:
        names = [f"{_DISK}.threshold_enabled", *(f"{_DISK}.watermark.{name}" for name in _WATERMARKS)]
        self._client.cluster.put_settings(persistent=dict.fromkeys(names))
        self._client.close()

    def _demand(self, free: str) -> None:
        marks = {f"{_DISK}.watermark.{name}": free for name in _WATERMARKS}
        self._client.cluster.put_settings(persistent={f"{_DISK}.threshold_enabled": True, **marks})

    def _blocks(self) -> list[bool]:
        found = self._client.indices.get_settings(index=self._indices, flat_settings=True)
        return [each["settings"].get("index.blocks.read_only_allow_delete") == "true" for each in found.body.values()]


@pytest.fixture
def full_disk(elasticsearch_url: str, prefix: str) -> Iterator[FullDisk]:
    disk = FullDisk(elasticsearch_url, prefix)
    yield disk
    disk.end()
    disk.close()


@contextmanager
def _full_memory(redis: OwnRedis) -> Iterator[None]:
    with redis.client() as client:
        client.config_set("maxmemory", "1")
        yield
        client.config_set("maxmemory", "0")


@pytest.mark.slow
def test_a_full_store_waits_alone_until_there_is_space(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, full_disk: FullDisk, tmp_path: Path
) -> None:
    """A full Elasticsearch and a full Redis accept nothing; with space again they catch up in order."""
    redis = OwnRedis(tmp_path)
    stores = StorePipeline(
        make_pipeline(),
        spark,
        {"cache": {"kind": "redis", "url": redis.url}, "search": {"kind": "elasticsearch", "url": elasticsearch_url}},
    )
    execute = stores.pipeline.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores.pipeline.start()
    execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 100) n")
    try:
        with stores.syncing() as syncs:
            stores.assert_same("t")
            full_disk.begin()
            execute("UPDATE t SET v = 'new' WHERE id < 20; DELETE FROM t WHERE id = 30")
            stores.assert_same("t", stores=["cache"])
            assert not _is_there(stores, "search")
            with _full_memory(redis):
                execute("INSERT INTO t VALUES (200, 'newer'); DELETE FROM t WHERE id = 31")
                full_disk.end()
                stores.assert_same("t", stores=["search"])
                assert not _is_there(stores, "cache")
            stores.assert_same("t")
            assert [sync.refused for sync in syncs.values()] == [None, None]
            assert_clean(stores.config, spark, *stores.names)
    finally:
        redis.close()


def _is_there(stores: StorePipeline, name: str) -> bool:
    """Whether everything committed so far is in the store, or arrives shortly."""
    return bool(wait_for(stores.config, [name], stores.pipeline.fence(), timeout_seconds=3))

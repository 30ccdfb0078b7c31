"""A store that was restored from a backup knows its position, and its sync continues from there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deploy.stack import Stack
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    own = OwnRedis(folder, save="")  # it writes its file when it is told to
    try:
        yield own
    finally:
        own.close()


class Backups:
    """A backup of each store as its operator would make it, and its restore."""

    def __init__(self, stack: Stack, redis: OwnRedis, warehouse: Path, folder: Path) -> None:
        self._stack = stack
        self._redis = redis
        self._warehouse = warehouse
        self._folder = folder
        self._indices = stack.home("elasticsearch") / "data"
        folder.mkdir()

    def make(self) -> None:
        with self._redis.client() as client:
            client.save()
        self._stack.stop("elasticsearch")
        _copy(self._indices, self._folder / "indices")
        self._stack.start("elasticsearch")
        _copy(self._warehouse, self._folder / "warehouse")

    def restore_cache_and_search(self) -> None:
        """Redis has written nothing since the backup, so its file is the backup."""
        self._redis.kill()
        self._redis.start()
        self._stack.stop("elasticsearch")
        _replace(self._indices, self._folder / "indices")
        self._stack.start("elasticsearch")

    def restore_warehouse(self) -> None:
        _replace(self._warehouse, self._folder / "warehouse")


def _copy(folder: Path, to: Path) -> None:
    subprocess.run(["cp", "--archive", folder, to], check=True)  # with its owners


def _replace(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)
    _copy(backup, folder)


def test_every_store_goes_on_from_its_backup(
    make_pipeline: MakePipeline,
    spark: SparkSession,
    stack: Stack,
    elasticsearch_url: str,
    redis: OwnRedis,
    tmp_path: Path,
) -> None:
    """After a restore each store gets the changes made since the backup again, without intervention.

    The cache and the search index are restored while their syncs run, the warehouse after its sync was stopped.
    """
    warehouse = tmp_path / "warehouse"
    stores = StorePipeline(
        make_pipeline(),
        spark,
        {
            "cache": {"kind": "redis", "url": redis.url},
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
            "warehouse": {"kind": "iceberg", "path": str(warehouse), "trigger_milliseconds": 500},
        },
    )
    execute = stores.pipeline.database.execute
    for name in ("t", "emptied"):
        execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    capture = stores.pipeline.start()
    for name in ("t", "emptied"):
        execute(f"INSERT INTO {name} SELECT n, 'old' FROM generate_series(1, 100) n")
    with stores.syncing():
        stores.wait_until_served(180)
        stores.assert_same("t", "emptied")
    backups = Backups(stack, redis, warehouse, tmp_path / "backups")
    backups.make()
    with stores.syncing("cache", "search"):
        with stores.syncing("warehouse"):
            execute("UPDATE t SET v = 'new' WHERE id < 20; DELETE FROM t WHERE id = 30; TRUNCATE emptied")
            execute("INSERT INTO emptied VALUES (7, 'after'); INSERT INTO t VALUES (200, 'new')")
            stores.assert_same("t", "emptied")
        backups.restore_cache_and_search()
        backups.restore_warehouse()
        with stores.syncing("warehouse"):
            stores.assert_same("t", "emptied", deadline_seconds=180)
            execute("UPDATE t SET v = 'newer' WHERE id < 10; DELETE FROM emptied")
            stores.assert_same("t", "emptied")
            assert_clean(stores.config, spark, *stores.names)
    capture.stop()

"""When the broker's disk is full it stops; when it has space again, capture and sync continue without intervention."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deploy.stack import Stack, open_stack
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DISK_SIZE: Final = "160m"
_LEFT_BYTES: Final = 500_000


class SmallDisk:
    """A file system in memory, which something else can fill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE}", "tmpfs", str(folder)]
        tried = subprocess.run(mount, capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no right to mount a disk of its own: {tried.stderr.strip()}")

    def fill(self) -> None:
        with self._ballast.open("wb") as file:
            file.write(bytes(shutil.disk_usage(self._folder).free - _LEFT_BYTES))

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", str(self._folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path / "stack" / "kafka")
    yield small
    small.close()


@pytest.fixture
def broker(tmp_path: Path, disk: SmallDisk) -> Iterator[Stack]:
    """A broker with its data on the small disk."""
    stack = open_stack(tmp_path / "stack")
    stack.up(["kafka"])
    yield stack
    disk.make_room()
    stack.down()


@pytest.mark.slow
def test_a_full_broker_is_waited_for_and_nothing_is_lost(
    database: Database,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    redis_url: str,
    spark: SparkSession,
    disk: SmallDisk,
    broker: Stack,
) -> None:
    """Twice under load the disk fills and the broker stops; after a restart with free space everything continues.

    Nothing is lost or published twice, a schema change included, and an audit finds nothing.
    """
    bootstrap = broker.server("kafka").address
    pipeline = Pipeline(database=database, bootstrap=bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
    pipeline.configure()
    stores = StorePipeline(pipeline, spark, {"cache": {"kind": "redis", "url": redis_url}})
    database.execute(SCHEMA)
    capture = pipeline.start()
    database.execute("INSERT INTO items VALUES (1, 1, 'first')")
    with stores.syncing() as syncs:
        stores.assert_same("items")
        with Writer(database) as writer:
            for _ in range(2):
                writer.wait_for_more()
                disk.fill()
                eventually(lambda: broker.server("kafka").pid is None, 120, "the broker to die")
                writer.wait_for_more()
                disk.make_room()
                broker.start("kafka")
        database.execute("ALTER TABLE items ADD COLUMN more int; UPDATE items SET more = 1")
        pipeline.assert_same("items", deadline_seconds=180, while_running=capture)
        stores.assert_same("items", deadline_seconds=180)
        assert [sync.refused for sync in syncs.values()] == [None]
        assert_clean(pipeline.config, spark, "cache")
    capture.stop()

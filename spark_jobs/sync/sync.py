"""`tailrace sync`: one Spark driver with one thread per store that runs its batches.

An error of one store does not affect the other stores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cdc.config import Config
from cdc.config.stores import SyncedStoreConfig
from cdc.errors import TransientError, UsageError
from cdc.logs import get_logger
from cdc.positions.store_notes import PauseWatch
from cdc.secrets import SecretOptions
from cdc.stores.registry import is_store_kind, store_module
from spark_jobs.session.spark_session import spark_session, start_workers
from spark_jobs.shape.store_tables import refuse_bad_shapes
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.store_sync import StoreSync
from spark_jobs.writing.choice import writing_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_REFUSED = 3
# Batches are small, and there are several per second. So Spark's fixed overhead per batch is most of the latency that
# readers of the store see.
_QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.sql.ui.explainMode": "simple",  # Spark writes the plan for each batch, and we never read it
    # The tasks of one store must not queue behind those of another.
    "spark.scheduler.mode": "FAIR",
}
# The worker daemon imports these modules before it forks workers (spark_jobs/session/worker_daemon.py).
_MODULES = "TAILRACE_WORKER_MODULES"
_TASK_MODULES = ("spark_jobs.tasks.row_counts", "spark_jobs.tasks.range_tasks")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Java's C2 compiler takes half of the driver's CPU time in the first minutes, while rows wait. It gains little here,
# since Python and the stores do the work. Warehouses are an exception: Java itself runs their merges.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1"


def run_sync(config: Config, names: Sequence[str], stop: threading.Event, *, generation: int | None = None) -> int:
    """Sync the stores until `stop` is set or every store has refused. Returns the exit code.

    `names` are the stores to sync; empty means all. `generation` is the generation to write, for exactly one store.
    """
    chosen = chosen_stores(config, names)
    if generation is not None and len(chosen) != 1:
        raise UsageError("--generation needs exactly one store.")
    log = get_logger("sync")
    spark = spark_session(driver_config(config, chosen).spark, "tailrace-sync " + " ".join(chosen))
    if not all(writing_of(config.stores[name].kind).in_spark for name in chosen):
        start_workers(spark)
    try:
        with ProgressFollower(config) as follower, PauseWatch(config) as pauses:
            _refuse_bad_shapes(config, chosen, spark, follower)
            syncs = [
                StoreSync(
                    name,
                    sync_settings(config, name),
                    config,
                    spark=spark,
                    follower=follower,
                    stop=stop,
                    number=generation,
                    is_paused=partial(pauses.is_paused, name),
                    is_refused=partial(pauses.is_refused, f"store {name}"),
                )
                for name in chosen
            ]
            for sync in syncs:
                sync.thread.start()
            try:
                while not stop.wait(0.5) and any(sync.thread.is_alive() for sync in syncs):
                    refuse_dead(spark)
            finally:
                stop.set()
                for sync in syncs:
                    sync.join()
    finally:
        spark.stop()
    refused = [sync.name for sync in syncs if sync.refused is not None]
    log.info("stopped", refused=refused)
    return _EXIT_REFUSED if refused else 0


def _refuse_bad_shapes(config: Config, names: Sequence[str], spark: SparkSession, follower: ProgressFollower) -> None:
    """Refuse errors in the stores' shapes before any sync runs, as far as they can be detected by then."""
    shaped = [name for name in names if config.stores[name].shape]
    if not shaped:
        return
    try:
        follower.catch_up()
        tables = follower.tables()
    except TransientError:  # Capture has never started, or Kafka does not answer. Each store checks again.
        tables = {}
    refuse_bad_shapes(config, shaped, spark, tables)


def refuse_dead(spark: SparkSession) -> None:
    """Raise if the JVM is gone. A driver cannot restart its JVM: the process that started the driver must do it."""
    try:
        _ = spark.sparkContext.defaultParallelism  # Spark refuses this question when it has stopped
    except Exception as error:
        raise TransientError(f"Spark has died: {type(error).__name__}.") from error


def chosen_stores(config: Config, names: Sequence[str]) -> list[str]:
    """Return the named stores, or all stores if none is named."""
    for name in names:
        if name not in config.stores:
            known = ", ".join(config.stores) or "none"
            raise UsageError(f"There is no [stores.{name}] in the config.", remedy=f"Stores there: {known}.")
    chosen = list(dict.fromkeys(names)) or list(config.stores)
    if not chosen:
        raise UsageError("The config has no [stores.NAME].", remedy="docs/reference/config.md shows how to add one.")
    for name in chosen:
        sync_settings(config, name)
    return chosen


def sync_settings(config: Config, name: str) -> SyncedStoreConfig:
    """Return the settings of a store that `tailrace sync` can write; refuse other kinds."""
    settings = config.stores[name]
    if not isinstance(settings, SyncedStoreConfig):
        raise UsageError(f"Store `{name}` has kind {settings.kind}, which cannot be synced here yet.")
    return settings


def sync_config(config: Config, names: Sequence[str]) -> Config:
    """Return the config with enough Spark task slots to run all stores' tasks at the same time.

    Hanging tasks of one store must not take the slots of another.
    """
    slots = max(os.cpu_count() or 1, sum(sync_settings(config, name).parallelism for name in names))
    master = f"local[{slots}]" if config.spark.master == "local[*]" else config.spark.master
    options = SecretOptions({**_QUICK, **_worker_modules(config, names), **config.spark.options})
    return replace(config, spark=replace(config.spark, master=master, options=options))


def _worker_modules(config: Config, names: Sequence[str]) -> dict[str, str]:
    """Return the setting that preloads the tasks' modules. Warehouses and shapes need none: Spark evaluates them."""
    settings = [config.stores[name] for name in names]
    if any(writing_of(each.kind).in_spark or each.shape for each in settings):
        return {}
    stores = sorted({store_module(each.kind) for each in settings if is_store_kind(each.kind)})
    return {f"spark.executorEnv.{_MODULES}": " ".join([*_TASK_MODULES, *stores])}


def driver_config(config: Config, names: Sequence[str]) -> Config:
    """Return the config of a driver that runs small batches for a long time."""
    config = sync_config(config, names)
    if any(writing_of(config.stores[name].kind).in_spark for name in names):
        return config
    java = f"{_QUICK_JAVA} {config.spark.options.get(_JAVA_OPTIONS, '')}".strip()
    return replace(
        config, spark=replace(config.spark, options=SecretOptions({**config.spark.options, _JAVA_OPTIONS: java}))
    )

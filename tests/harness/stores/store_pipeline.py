"""A pipeline's stores under test, fed by real syncs inside the test's own process: Spark starts once for all tests.

stores = StorePipeline(make_pipeline(), spark, {"cache": {"kind": "redis", "url": redis_url}})
with stores.syncing():
    ...
    stores.assert_same("t")
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from cdc.config import Config, load_config
from cdc.lsn import LSN
from cdc.positions.store_notes import PauseWatch
from cdc.positions.wait import wait_for
from cdc.stores.contract import Generation, Store, TableSchema
from cdc.stores.registry import open_store
from spark_jobs.bootstrap.bootstrap import BootstrapReport, BuildOptions, run_bootstrap
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.store_sync import StoreSync
from spark_jobs.sync.sync import sync_settings
from tests.harness.comparison import canonical
from tests.harness.comparison.comparer import Reader, assert_same, source_reader
from tests.harness.kafka.records import Key, Row
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.catalog import Table
from tests.harness.processes.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StorePipeline:
    """`pipeline` has its config file; the stores' sections are added to it, with few tasks for a small machine."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, stores: Mapping[str, Mapping[str, Any]]) -> None:
        self.pipeline = pipeline
        self.names = list(stores)
        self._spark = spark
        lines = [
            line
            for name, section in stores.items()
            for line in _section(f"stores.{name}", {"parallelism": 1, **section})
        ]
        with pipeline.config.open("a") as file:
            file.write("\n".join(lines) + "\n")

    @property
    def config(self) -> Config:
        return load_config(self.pipeline.config)

    @contextmanager
    def syncing(self, *names: str, generation: int | None = None) -> Iterator[dict[str, StoreSync]]:
        """Run `tailrace sync`'s own code in threads until the block ends."""
        stop, config = threading.Event(), self.config
        with ProgressFollower(config) as follower, PauseWatch(config) as pauses:
            syncs = {
                name: StoreSync(
                    name,
                    sync_settings(config, name),
                    config,
                    spark=self._spark,
                    follower=follower,
                    stop=stop,
                    number=generation,
                    is_paused=partial(pauses.is_paused, name),
                    is_refused=partial(pauses.is_refused, f"store {name}"),
                )
                for name in names or self.names
            }
            for sync in syncs.values():
                sync.thread.start()
            try:
                yield syncs
            finally:
                stop.set()
                for sync in syncs.values():
                    sync.join()

    def replace(self, old: str, new: str) -> None:
        """Replace text in the config file once; running syncs keep what they have read."""
        text = self.pipeline.config.read_text()
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times:\n{text}"
        self.pipeline.config.write_text(text.replace(old, new))

    def bootstrap(self, name: str, **options: bool) -> BootstrapReport:
        return run_bootstrap(self.config, name, BuildOptions(**options), spark=self._spark)

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[Store, Generation]]:
        """The opened store and its serving generation."""
        store = open_store(name, self.config.stores[name], self.config.kafka.prefix)
        try:
            serving = store.serving()
            assert serving is not None, f"{name} serves nothing"
            yield store, serving
        finally:
            store.close()

    def tables(self) -> dict[str, TableSchema]:
        with ProgressFollower(self.config) as follower:
            follower.catch_up()
            return follower.tables()

    def reader(self, name: str) -> Reader:
        """A reader of the store's content without Spark."""

        def read(table: Table) -> dict[Key, Row]:
            schema = self.tables().get(self.pipeline.topic(f"{table.schema}.{table.name}"))
            if schema is None:  # capture records a table's schema with its first event: no event yet, no rows
                return {}
            with self.opened(name) as (store, generation):
                rows = [canonical.loads(row.row) for row in store.contents(generation, schema) if row.row is not None]
            read_rows = [_canonical(table, row) for row in rows]
            return {tuple(row[column] for column in table.key): row for row in read_rows}

        return read

    def rows(self, name: str, table: str) -> dict[str, str]:
        """What the store's readers see of a table: each row's JSON as it is stored, by id."""
        schema = self.tables()[self.pipeline.topic(f"public.{table}")]
        with self.opened(name) as (store, generation):
            return {each.id: (each.row or b"").decode() for each in store.contents(generation, schema)}

    def wait(self, *names: str, deadline_seconds: float = 120.0) -> LSN:
        """Wait until everything committed so far is in these stores, or in all of them."""
        self.pipeline.database.execute("SELECT pg_logical_emit_message(true, 'test.fence', '')")
        lsn = self.pipeline.database.lsn()
        waited = wait_for(self.config, names or self.names, lsn, timeout_seconds=deadline_seconds)
        assert waited, f"not everything up to {lsn} is there: {waited.stores}"
        return lsn

    def assert_same(self, *tables: str, stores: Sequence[str] = (), deadline_seconds: float = 120.0) -> None:
        """Wait for everything committed so far, then compare by content."""
        names = list(stores) or self.names
        self.wait(*names, deadline_seconds=deadline_seconds)
        self.compare(*tables, stores=names)

    def compare(self, *tables: str, stores: Sequence[str] = ()) -> None:
        described = self.pipeline.database.describe(*tables)
        source = source_reader(self.pipeline.database.dsn)
        assert_same(described, source, *(self.reader(name) for name in list(stores) or self.names), deadline_seconds=0)

    def wait_until_served(self, deadline_seconds: float = 60.0) -> None:
        eventually(self._all_serve, deadline_seconds, "every store to serve")

    def _all_serve(self) -> bool:
        for name in self.names:
            with self.opened(name):
                pass
        return True


def _canonical(table: Table, row: dict[str, Any]) -> Row:
    known = {column.name: column.type for column in table.columns}
    return {name: canonical.from_json(known[name], value) if name in known else value for name, value in row.items()}


def _section(name: str, keys: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in keys.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
    for key, value in keys.items():
        if isinstance(value, Mapping):
            lines.append(f"[{name}.{key}]")
            lines += [f"{json.dumps(inner)} = {_inline(each)}" for inner, each in value.items()]
    return lines


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)

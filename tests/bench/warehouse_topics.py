"""Parts of the warehouse's benchmark that begin at a topic: bootstrap against a plain write, and sync.

The plain write is the least that anybody's Spark job must do: read the topic, parse the rows, write one table of the
same columns. It compares no versions, keeps no history and counts nothing. Both take turns in one Spark session, each
time into a warehouse of their own, and the better time of each counts: neither pays for Java's start.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cdc.config import Config, load_config
from cdc.lsn import LSN
from cdc.positions.wait import wait_for
from cdc.postgres.connection import connect
from spark_jobs.bootstrap.bootstrap import BuildOptions, run_bootstrap
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.shape.typed_rows import row_type
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.topic_frame import read_topic_frame
from tests.bench.capture import _fresh_stack, say
from tests.bench.source import POSTGRES_SETTINGS
from tests.bench.store_pipeline import Addresses, BenchPipeline, read_log
from tests.bench.store_source import StoreSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 1_000_000
_SYNC_ROWS: Final = 300_000
_PROBES: Final = 10
_ROUNDS: Final = 2
_NAME: Final = "rows"


def topic_figures(spark: SparkSession, folder: Path, scale: float, parts: Collection[str]) -> dict[str, object]:
    figures: dict[str, object] = {}
    with _fresh_stack(("postgres", "kafka"), POSTGRES_SETTINGS) as stack:
        dsn = urlsplit(stack.server("postgres").address)._replace(path="/bench").geturl()
        kafka = stack.server("kafka").address
        with StoreSource(stack.server("postgres").address, dsn) as source:
            source.create(_NAME)
            rows = max(10_000, int(ROWS * scale))
            source.fill(_NAME, rows)
            nowhere = Addresses(dsn=dsn, kafka=kafka, elasticsearch="http://127.0.0.1:9", redis="redis://127.0.0.1:9")
            pipeline = BenchPipeline(folder, _NAME, [_NAME], nowhere)
            text = pipeline.config.read_text().partition("[stores.")[0]

            def at(name: str) -> Config:
                """The same topics, another warehouse, under the name that the pipeline's own steps ask for."""
                section = f'[stores.search]\nkind = "iceberg"\npath = "{folder / name}"\ntrigger_milliseconds = 1000\n'
                pipeline.config.write_text(text + section)
                return load_config(pipeline.config)

            at("warehouse")
            pipeline.copy()
            if "bootstrap" in parts:
                figures |= _bootstrap(spark, at, pipeline, rows)
            if "sync" in parts:
                figures |= _sync(load_config(pipeline.config), pipeline, source, rows, scale)
    return figures


def _bootstrap(
    spark: SparkSession, at: Callable[[str], Config], pipeline: BenchPipeline, rows: int
) -> dict[str, object]:
    plain, ours = [], []
    for number in range(_ROUNDS):
        config = at(f"warehouse{number}")
        plain.append(_plain_write(spark, config, pipeline))
        report = run_bootstrap(config, "search", BuildOptions(), spark=spark)
        if report.verdict.rows != rows:
            raise RuntimeError(f"the bootstrap loaded {report.verdict.rows} of {rows} rows")
        ours.append(report.seconds)
        say(f"  {rows:,} rows: plain write {plain[-1]:.1f} s, bootstrap {ours[-1]:.1f} s")
    return {
        "warehouse_ratio_limit": round(min(plain) / min(ours), 3),
        "warehouse_bootstrap_rate": round(rows / min(ours)),
        "warehouse_limit_rate": round(rows / min(plain)),
    }


def _plain_write(spark: SparkSession, config: Config, pipeline: BenchPipeline) -> float:
    settings = config.stores["search"]
    session = warehouse_session(spark, settings)  # type: ignore[arg-type]
    with ProgressFollower(config) as follower:
        follower.catch_up()
        table = follower.tables()[pipeline.topic(_NAME)]
    session.sql("CREATE NAMESPACE IF NOT EXISTS tailrace.plain")
    began = time.monotonic()
    latest = {table.topic: [-1] * config.kafka.partitions}
    records = read_topic_frame(session, config, {table.topic: [0] * config.kafka.partitions}, latest)
    parsed = records.selectExpr(f"from_json(string(value), 'after {row_type(table)}').after AS row")
    parsed.select("row.*").writeTo("tailrace.plain.rows").using("iceberg").create()
    return time.monotonic() - began


def _sync(config: Config, pipeline: BenchPipeline, source: StoreSource, rows: int, scale: float) -> dict[str, object]:
    """At a trigger of one second; the default of thirty adds up to as many."""
    more = max(5_000, int(_SYNC_ROWS * scale))
    with pipeline.running("capture"), pipeline.running("sync", "search") as sync:
        _wait(config, 300)
        began = time.monotonic()
        source.append(_NAME, rows + 1, more)
        _wait(config, 600)
        sustained = more / (time.monotonic() - began)
        say(f"  sync {sustained:,.0f} rows/s")
        taken = []
        for number in range(_PROBES):
            sync.check()
            began = time.monotonic()
            source.insert(_NAME, rows + more + 1 + number)
            _wait(config, 120)
            taken.append(time.monotonic() - began)
        last = read_log(sync.log).get("batch_applied", {})
    return {
        "sync_rows_per_second": round(sustained),
        "visible_seconds": {"p50": round(statistics.median(taken), 2), "most": round(max(taken), 2)},
        "small_batch_milliseconds": last.get("milliseconds"),
    }


def _wait(config: Config, seconds: float) -> None:
    with connect(config.source.conninfo()) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    lsn = LSN.parse(row[0]) if row is not None else LSN(0)
    if not wait_for(config, ["search"], lsn, timeout_seconds=seconds):
        raise RuntimeError(f"the warehouse does not reach {lsn}")

"""`make bench-source`: a batch read by the data source `tailrace`, against Spark's own Kafka connector.

Both read one topic of a million rows of six columns, on two cores, take turns in one Spark session, and give their rows
to Spark's `noop` sink. The connector's job parses the events with `from_json` into the same types. It neither compares
versions nor drops deleted rows. The better time of each counts. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cdc.config import SparkConfig, load_config
from cdc.secrets import SecretOptions
from spark_jobs.session.spark_session import spark_session
from spark_jobs.shape.typed_rows import row_type
from spark_jobs.source.data_source import TailraceDataSource
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.table_topic import find_table, read_published
from tests.bench.capture import _fresh_stack, say
from tests.bench.source import POSTGRES_SETTINGS
from tests.bench.store_pipeline import Addresses, BenchPipeline
from tests.bench.store_source import StoreSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
_ROUNDS: Final = 3
_NAME: Final = "rows"
_NOWHERE: Final = {"elasticsearch": "http://127.0.0.1:9", "redis": "redis://127.0.0.1:9"}
_OPTIONS: Final = SecretOptions({"spark.driver.memory": "2g"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark_source")
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    rows = max(10_000, int(ROWS * parser.parse_args().scale))
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="tailrace-source-"))
    try:
        with _fresh_stack(("postgres", "kafka"), POSTGRES_SETTINGS) as stack:
            server = stack.server("postgres").address
            dsn = urlsplit(server)._replace(path="/bench").geturl()
            with StoreSource(server, dsn) as source:
                source.create(_NAME)
                source.fill(_NAME, rows)
            addresses = Addresses(dsn=dsn, kafka=stack.server("kafka").address, **_NOWHERE)
            pipeline = BenchPipeline(folder, _NAME, [_NAME], addresses)
            pipeline.copy()
            say("the topic is filled")
            figures = _figures(pipeline.config, rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**figures, "cpus": os.cpu_count(), "load_at_start": round(load, 2)}))


def _figures(config: Path, rows: int) -> dict[str, object]:
    spark = spark_session(SparkConfig(master="local[2]", options=_OPTIONS), "tailrace-bench-source")
    try:
        spark.dataSource.register(TailraceDataSource)
        options = {"config": str(config), "table": f"public.{_NAME}"}
        reads: dict[str, Callable[[], DataFrame]] = {
            "tailrace": lambda: spark.read.format("tailrace").options(**options).load(),
            "connector": lambda: _by_connector(spark, config, options),
        }
        found = reads["tailrace"]().count()
        if found != rows:
            raise RuntimeError(f"{found} rows instead of {rows}")
        seconds: dict[str, list[float]] = {name: [] for name in reads}
        for _ in range(_ROUNDS):
            for name, read in reads.items():
                began = time.monotonic()
                read().write.format("noop").mode("overwrite").save()
                seconds[name].append(time.monotonic() - began)
                say(f"  {name}: {seconds[name][-1]:.2f} s")
    finally:
        spark.stop()
    rates = {f"{name}_rows_per_second": round(rows / min(each)) for name, each in seconds.items()}
    return {"rows": rows, **rates, "seconds": {name: [round(one, 2) for one in each] for name, each in seconds.items()}}


def _by_connector(spark: SparkSession, config: Path, options: dict[str, str]) -> DataFrame:
    settings = SourceOptions.read(options)
    table = find_table(settings, read_published(settings))
    records = (
        spark.read.format("kafka")
        .options(**load_config(config).kafka.spark_options())
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", table.topic)
        .load()
    )
    fields = f"op string, after {row_type(table)}, source struct<position: bigint, seq: int>"
    event = records.selectExpr("string(key) AS _key", f"from_json(string(value), '{fields}') AS event")
    return event.selectExpr("event.after.*", "_key", "event.source AS _version", "event.op AS _op")


if __name__ == "__main__":
    main()

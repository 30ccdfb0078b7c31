"""`make bench-audit`: an audit of 5 million rows against a plain scan with a hash aggregate in Postgres (the limit).

One fresh local stack, one go; `tailrace` is run as a user runs it. Progress goes to standard error; the last line of
standard output is JSON. README.md beside this file says how to read it. No figure is asserted here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from deploy.stack import NAMES, Stack
from tests.bench.capture import QUIET_LOAD, _fresh_stack, say
from tests.bench.source import POSTGRES_SETTINGS
from tests.bench.store_pipeline import CACHE, SEARCH, Addresses, BenchPipeline, exit_reason
from tests.bench.store_source import StoreSource

ROWS: Final = 5_000_000
STORE_ROWS: Final = 500_000
#: How many rows of the topic differ from the source, one audit after the other.
DIFFERING: Final = (0, 10, 10_000)
# One session reads every row as text and adds up the texts' hashes; no parallel workers.
_LIMIT: Final = "SELECT sum(hashtextextended(t::text, 0)) FROM {table} t"
_LIMIT_ROUNDS: Final = 3


class AuditBench:
    def __init__(self, stack: Stack, scale: float) -> None:
        self._stack = stack
        self._addresses = Addresses(
            dsn=urlsplit(stack.server("postgres").address)._replace(path="/bench").geturl(),
            kafka=stack.server("kafka").address,
            elasticsearch=stack.server("elasticsearch").address,
            redis=stack.server("redis").address,
        )
        self._rows = int(ROWS * scale)
        self._store_rows = int(STORE_ROWS * scale)

    def run(self, parts: list[str]) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        with StoreSource(self._stack.server("postgres").address, self._addresses.dsn) as source:
            if "topic" in parts:
                figures |= self._topic(source)
            if "stores" in parts:
                figures["stores"] = self._stores(source)
        return figures

    def _topic(self, source: StoreSource) -> dict[str, Any]:
        say(f"filling {self._rows:,} rows")
        source.create("large")
        source.fill("large", self._rows)
        pipeline = BenchPipeline(self._stack.folder, "audit_topic", ["large"], self._addresses)
        pipeline.copy()
        limit = self._limit("large")
        say(f"limit: {limit:.1f} s")
        audits: dict[str, dict[str, float]] = {}
        with pipeline.running("capture"):
            tampered = 0
            for wanted in DIFFERING:
                self._tamper(pipeline.topic("large"), tampered, wanted)
                tampered = wanted
                audits[str(wanted)] = self._audit(pipeline, ["--topic"], wanted)[0]
                say(f"{wanted:,} differing: {audits[str(wanted)]}")
        seconds = audits["0"]["seconds"]
        return {
            "rows": self._rows,
            "limit_seconds": round(limit, 2),
            "seconds": {name: each["seconds"] for name, each in audits.items()},
            "seconds_with_start": {name: each["with_start"] for name, each in audits.items()},
            "rows_per_second": round(self._rows / seconds),
            "ratio_limit": round(limit / seconds, 2),
        }

    def _stores(self, source: StoreSource) -> dict[str, Any]:
        say(f"filling {self._store_rows:,} rows for the stores")
        source.create("small")
        source.fill("small", self._store_rows)
        pipeline = BenchPipeline(self._stack.folder, "audit_stores", ["small"], self._addresses)
        pipeline.copy()
        for store in (SEARCH, CACHE):
            pipeline.bootstrap(store)
        limit = self._limit("small")
        found = {}
        with pipeline.running("capture"), pipeline.running("sync"):
            for store in (SEARCH, CACHE):
                (figures,) = self._audit(pipeline, [store], 0)
                found[store] = {**figures, "ratio_limit": round(limit / figures["seconds"], 3)}
                say(f"{store}: {found[store]}")
        return {"rows": self._store_rows, "limit_seconds": round(limit, 2), **found}

    def _limit(self, table: str) -> float:
        """The best of some, so that it does not depend on what the cache holds."""
        with psycopg.connect(self._addresses.dsn, autocommit=True) as connection:
            connection.execute("SET max_parallel_workers_per_gather = 0")
            times = []
            for _ in range(_LIMIT_ROUNDS):
                began = time.monotonic()
                connection.execute(_LIMIT.format(table=table).encode())
                times.append(time.monotonic() - began)
        return min(times)

    def _audit(self, pipeline: BenchPipeline, arguments: list[str], differing: int) -> list[dict[str, float]]:
        command = [sys.executable, "-m", "cdc", "audit", "--json", "--timeout", "300", *arguments]
        command += ["--config", str(pipeline.config)]
        log = self._stack.folder / "audit.log"
        began = time.monotonic()
        with log.open("wb") as errors:
            done = subprocess.run(
                command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=errors, check=False
            )
        wall = time.monotonic() - began
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the audit ended with exit code {done.returncode}:\n{exit_reason(log)}")
        audits = json.loads(done.stdout)["audits"]
        for audit in audits:
            if audit["differing"] != differing or (audit["verdict"] == "equal") != (differing == 0):
                raise RuntimeError(f"the audit found {audit['differing']} instead of {differing}: {audit['verdict']}")
        return [{"seconds": audit["seconds"], "with_start": round(wall, 1)} for audit in audits]

    def _tamper(self, topic: str, already: int, wanted: int) -> None:
        """So many rows of the topic are not what the source has: their last record again, with another content."""
        if wanted <= already:
            return
        settings = {"bootstrap.servers": self._addresses.kafka}
        consumer = Consumer({**settings, "group.id": "bench", "isolation.level": "read_committed"})
        producer = Producer(settings)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        left, skip = wanted - already, already
        while left:
            for message in consumer.consume(1000, timeout=1):
                value = message.value()
                if message.error() is not None or value is None or not left:
                    continue
                if skip:
                    skip -= 1
                    continue
                changed = value.replace(b'"customer":"customer', b'"customer":"somebody', 1)
                headers = message.headers() or []
                producer.produce(topic, changed, message.key(), 0, headers=list(headers))
                left -= 1
        producer.flush(30)
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["topic", "stores"], help="topic,stores")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say little")
    names = NAMES if "stores" in options.only else ("postgres", "kafka")
    with _fresh_stack(NAMES, POSTGRES_SETTINGS) as stack:
        figures = AuditBench(stack, options.scale).run(options.only)
        figures["settings"] = {
            "scale": options.scale,
            "cpus": os.cpu_count(),
            "load_at_start": round(load, 2),
            "python": platform.python_version(),
            **{name: stack.server(name).version for name in names},
            "seconds": round(time.monotonic() - started),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""`make bench-snapshot`: plain COPY (the limit), Debezium's snapshot (the peer) and our first copy of the same tables.

One fresh local stack, one go: both tables in one copy, then each alone; each copy has a publication and a slot of its
own. Progress goes to standard error; the last line of standard output is JSON. README.md beside this file says how to
read it.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from deploy.stack import Stack
from tests.bench.capture import QUIET_LOAD, _fresh_stack, say
from tests.bench.debezium import Debezium, connector_settings, install
from tests.bench.engines import _TUNED_CONNECTOR, _TUNED_WORKER, DEBEZIUM_HEAP_MB, PARTITIONS, ROOT, _create_topics
from tests.bench.memory import touch_memory
from tests.bench.meter import Meter
from tests.bench.report import LIMIT, OURS, PEER

READERS = (LIMIT, PEER, OURS)
CONNECTIONS = 4
_FIRST_POLL_SECONDS = 0.02
_POLL_SECONDS = 0.2
_GIVE_UP_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    rows: int
    columns: str
    values: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is copied in one go."""

    name: str
    tables: tuple[Table, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    def topics(self, prefix: str) -> list[str]:
        return [f"{prefix}.public.{table.name}" for table in self.tables]


WHOLE = "both"


def parts(scale: float) -> list[Part]:
    def scaled(rows: int) -> int:
        return max(1_000, int(rows * scale))

    narrow = Table(
        name="narrow",
        rows=scaled(5_000_000),
        columns="id bigint PRIMARY KEY, customer text, email text, amount numeric(12,2), created timestamptz,"
        " active boolean",
        values="i, 'customer name ' || i, 'customer' || i || '@example.com', i * 1.25, now(), mod(i, 2) = 0",
    )
    wide = Table(
        name="wide",
        rows=scaled(200_000),
        columns="id bigint PRIMARY KEY, body text",
        values="i, (SELECT string_agg(md5((i * 128 + part)::text), '') FROM generate_series(1, 125) AS part)",
    )
    return [
        Part(name=WHOLE, tables=(narrow, wide)),
        Part(name="narrow", tables=(narrow,)),
        Part(name="wide", tables=(wide,)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """`seconds` from the first row that came out to the last; `seconds_from_start` from the command's start."""

    rows: int
    seconds: float
    seconds_from_start: float
    cpu_seconds: float
    peak_memory_mb: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


class StatusPoller:
    """Polls until the copy has ended, and keeps the figures of a process and its children meanwhile."""

    def __init__(self, pid: int) -> None:
        self.started = time.monotonic()
        self.first = 0.0
        self._meter = Meter(pid)
        self._cpu: dict[int, float] = {}
        self._peak = 0.0
        self._pid = pid

    def until(self, begun: Callable[[], bool], ended: Callable[[], bool], rows: int) -> Copied:
        while not ended():
            if not self.first and begun():
                self.first = time.monotonic()
            if self.first:
                self._poll()
            if time.monotonic() - self.started > _GIVE_UP_SECONDS:
                raise RuntimeError("The copy does not end")
            time.sleep(_POLL_SECONDS if self.first else _FIRST_POLL_SECONDS)
        last = time.monotonic()
        return Copied(
            rows=rows,
            seconds=last - (self.first or self.started),
            seconds_from_start=last - self.started,
            cpu_seconds=sum(self._cpu.values()),
            peak_memory_mb=self._peak,
        )

    def _poll(self) -> None:
        """Of each process the last that was seen: workers of Spark come and go."""
        try:
            process = psutil.Process(self._pid)
            for each in (process, *process.children(recursive=True)):
                times = each.cpu_times()
                self._cpu[each.pid] = times.user + times.system
            self._peak = max(self._peak, self._meter.peak_memory_mb())
        except (psutil.Error, OSError):
            return  # ended while we looked


class Bench:
    def __init__(self, options: argparse.Namespace, stack: Stack, cleanup: ExitStack) -> None:
        self._options = options
        self._folder = stack.folder
        self._bootstrap = stack.server("kafka").address
        server_dsn = stack.server("postgres").address
        with psycopg.connect(server_dsn, autocommit=True) as server:
            server.execute("CREATE DATABASE bench")
        self._dsn = urlsplit(server_dsn)._replace(path="/bench").geturl()
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        cleanup.callback(self._connection.close)
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "bench",
                "isolation.level": "read_uncommitted",
                "log_level": 0,
            }
        )
        cleanup.callback(self._consumer.close)
        self._known: set[str] = set()
        self.results: dict[str, dict[str, Copied]] = {}

    def run(self) -> None:
        chosen = [part for part in parts(self._options.scale) if part.name in self._options.only]
        for table in {table.name: table for part in chosen for table in part.tables}.values():
            say(f"writing {table.rows} rows: {table.name}")
            self._write(table)
        for place, part in enumerate(chosen):
            say(f"copying {part.rows} rows: {part.name}")
            self._publish(part)
            names = [name for name in READERS if name in self._options.readers]
            first = place % len(names)
            self.results[part.name] = {}
            for name in names[first:] + names[:first]:  # so that no engine always finds the caches warm
                touch_memory()
                run = {LIMIT: self._plain, PEER: self._debezium, OURS: self._tailrace}[name]
                found = self.results[part.name][name] = run(part)
                say(
                    f"  {name:<9} {found.rate:>9,.0f} rows/s, {found.cpu_seconds / found.rows * 1e6:.1f} CPU s per"
                    f" million, peak {found.peak_memory_mb:.0f} MB ({found.seconds:.1f} s,"
                    f" {found.seconds_from_start:.1f} s from the start)"
                )

    def _write(self, table: Table) -> None:
        self._connection.execute(f"CREATE TABLE {table.name} ({table.columns})".encode())
        self._connection.execute(
            f"INSERT INTO {table.name} SELECT {table.values} FROM generate_series(1, {table.rows}) AS i".encode()
        )
        self._connection.execute(f"VACUUM {table.name}".encode())  # hint bits: they would cost the first reader
        self._connection.execute("CHECKPOINT")

    def _publish(self, part: Part) -> None:
        tables = ", ".join(table.name for table in part.tables)
        for reader in (PEER, OURS):
            self._connection.execute(f"CREATE PUBLICATION {reader}_{part.name} FOR TABLE {tables}".encode())

    def _plain(self, part: Part) -> Copied:
        """One connection that throws every line away as it comes."""
        code = (
            "import psycopg, sys\n"
            "pgconn = psycopg.connect(sys.argv[1]).pgconn\n"
            "for table in sys.argv[2:]:\n"
            "    pgconn.exec_(f'COPY {table} TO STDOUT'.encode())\n"
            "    while pgconn.get_copy_data(0)[0] > 0: pass\n"
            "    while pgconn.get_result() is not None: pass\n"
        )
        tables = [table.name for table in part.tables]
        process = subprocess.Popen([sys.executable, "-c", code, self._dsn, *tables], cwd=ROOT)
        found = StatusPoller(process.pid).until(lambda: True, lambda: process.poll() is not None, part.rows)
        if process.returncode:
            raise RuntimeError("plain COPY failed")
        return found

    def _debezium(self, part: Part) -> Copied:
        prefix = f"debezium_{part.name}"
        topics = part.topics(prefix)
        _create_topics(self._bootstrap, topics)
        settings = connector_settings(self._dsn, prefix=prefix, slot=prefix, publication=prefix)
        settings |= _TUNED_CONNECTOR | {
            "snapshot.mode": "initial",
            "snapshot.max.threads": str(CONNECTIONS),
            "table.include.list": ",".join(f"public.{table.name}" for table in part.tables),
            "provide.transaction.metadata": "false",
        }
        with Debezium(
            install(),
            self._folder / prefix,
            dsn=self._dsn,
            bootstrap=self._bootstrap,
            connector=settings,
            worker=_TUNED_WORKER,
            heap_mb=DEBEZIUM_HEAP_MB,
        ) as debezium:
            checked = [time.monotonic()]

            def ended() -> bool:
                if time.monotonic() - checked[0] > 2:
                    checked[0] = time.monotonic()
                    debezium.check()
                return self._ends(topics) >= part.rows

            return StatusPoller(debezium.pid).until(lambda: self._ends(topics) > 0, ended, part.rows)

    def _tailrace(self, part: Part) -> Copied:
        """`tailrace snapshot` as a user runs it: it makes the slot, holds the snapshot and copies."""
        prefix = f"tailrace_{part.name}"
        folder = self._folder / prefix
        folder.mkdir()
        config = folder / "tailrace.toml"
        config.write_text(
            f'[source]\ndsn = "{self._dsn}"\nslot = "{prefix}"\npublication = "{prefix}"\n'
            f"tables = {json.dumps([f'public.{table.name}' for table in part.tables])}\n"
            f'[kafka]\nbootstrap = "{self._bootstrap}"\nprefix = "{prefix}"\n'
            f"partitions = {PARTITIONS}\n[snapshot]\nconnections = {CONNECTIONS}\n"
        )
        output = folder / "output"
        command = [sys.executable, "-m", "cdc", "snapshot", "--json", "--config", str(config)]
        with output.open("wb") as out, (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        topics = part.topics(prefix)
        try:
            found = StatusPoller(process.pid).until(
                lambda: self._ends(topics) > 0, lambda: _is_through(output) or process.poll() is not None, part.rows
            )
            code = process.wait(120)
        finally:
            process.kill()
        if code:
            raise RuntimeError(f"tailrace snapshot failed:\n{(folder / 'log').read_text()[-3000:]}")
        rows = json.loads(output.read_text().splitlines()[-1])["progress"]["rows"]
        if rows != part.rows:
            raise RuntimeError(f"tailrace published {rows} of {part.rows} rows")
        return found

    def _ends(self, topics: Sequence[str]) -> int:
        """How many records their partitions have, open transactions included; a topic that is not made yet has none."""
        return sum(map(self._end, topics))

    def _end(self, topic: str) -> int:
        if topic not in self._known and topic not in self._consumer.list_topics(timeout=10).topics:
            return 0
        self._known.add(topic)
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        try:
            return sum(self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
        except KafkaException:  # just made: it has no leader yet
            return 0


def _is_through(output: Path) -> bool:
    """The last chunk's transaction is committed: every row is visible."""
    for line in reversed(output.read_text().splitlines()[-3:]):
        try:
            told = json.loads(line)
        except ValueError:  # half of a line that is being written
            continue
        if told["event"] == "result" or (told["event"] == "progress" and told["chunks"] == told["total_chunks"]):
            return True
    return False


def as_json(results: dict[str, dict[str, Copied]]) -> dict[str, Any]:
    def each(figure: Callable[[Copied], float], digits: int = 0) -> dict[str, dict[str, float]]:
        return {
            part: {reader: round(figure(found), digits) for reader, found in by_reader.items()}
            for part, by_reader in results.items()
        }

    rates = each(lambda found: found.rate)
    to_debezium = {part: _ratio(by_reader, PEER) for part, by_reader in rates.items()}
    to_copy = {part: _ratio(by_reader, LIMIT) for part, by_reader in rates.items()}
    return {
        "rates": rates,
        "rates_from_start": each(lambda found: found.rows / found.seconds_from_start),
        "ratios_debezium": to_debezium,
        "ratios_copy": to_copy,
        "ratio_debezium": to_debezium.get(WHOLE),
        "ratio_copy": to_copy.get(WHOLE),
        "cpu_seconds_per_million": each(lambda found: found.cpu_seconds / found.rows * 1_000_000, 2),
        "peak_memory_mb": each(lambda found: found.peak_memory_mb),
    }


def _ratio(rates: dict[str, float], other: str) -> float | None:
    return round(rates[OURS] / rates[other], 2) if OURS in rates and other in rates else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshot", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[WHOLE, "narrow", "wide"], help="some of both,narrow,wide"
    )
    parser.add_argument("--readers", type=lambda text: text.split(","), default=list(READERS), help=",".join(READERS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say little")
    with _fresh_stack() as stack, ExitStack() as cleanup:
        bench = Bench(options, stack, cleanup)
        bench.run()
        figures = as_json(bench.results)
        figures["settings"] = {
            "scale": options.scale,
            "connections": CONNECTIONS,
            "cpus": os.cpu_count(),
            "load_at_start": round(load, 2),
            "python": platform.python_version(),
            "postgres": stack.server("postgres").version,
            "seconds": round(time.monotonic() - started),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

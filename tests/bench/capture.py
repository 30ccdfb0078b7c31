"""`make bench-capture`: pg_recvlogical, Debezium, ours and a floor drain the same backlogs.

Everything happens on one fresh local stack, in one go. Progress goes to standard error; the last line of standard
output is JSON. README.md beside this file says how to read it. No figure is asserted here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deploy.stack import Stack, open_stack
from tests.bench import latency
from tests.bench.engines import ROOT, DebeziumEngine, FloorEngine, TailraceEngine
from tests.bench.readers import Drain, Limit, Reader, TopicReader
from tests.bench.report import FLOOR, LIMIT, OURS, PEER, Results
from tests.bench.source import FINISH, POSTGRES_SETTINGS, Backlog, Source, backlogs

READERS = (LIMIT, PEER, OURS, FLOOR)
PARTS = ("inserts", "transactions", "updates", "latency", "memory")
TABLES = ["orders", "lines", "ticks", "documents", FINISH]
MEMORY_ROWS = (200_000, 2_000_000)
MEMORY_ROUNDS = 3  # a peak is the largest of many chances: one process of each says little
LATENCY_SECONDS = 15.0
QUIET_LOAD = 0.5
# So that Java has compiled what is hot, in each shape of backlog: Debezium itself, and the broker's code for
# transactions, which only ours uses.
WARM_UP_SCALE = 1.0


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say little")
    with _fresh_stack() as stack, ExitStack() as cleanup:
        bench = Bench(options, stack, cleanup)
        bench.run()
        figures = bench.results.as_json()
        figures["settings"] = {
            "scale": options.scale,
            "rounds": options.rounds,
            "cpus": os.cpu_count(),
            "load_at_start": round(load, 2),
            "python": platform.python_version(),
            "postgres": stack.server("postgres").version,
            "transaction_topic": options.transaction_topic,
            "seconds": round(time.monotonic() - started),
        }
    print(json.dumps(figures))


class Bench:
    """The whole run; `results` grows as it goes."""

    def __init__(self, options: argparse.Namespace, stack: Stack, cleanup: ExitStack) -> None:
        self._options = options
        self._bootstrap = stack.server("kafka").address
        self._folder = stack.folder
        self._backlogs = backlogs(options.scale)
        self.results = Results()
        server_dsn = stack.server("postgres").address
        dsn = urlsplit(server_dsn)._replace(path="/bench").geturl()
        self._source = Source(server_dsn, dsn)
        cleanup.callback(self._source.close)
        self._readers = self._prepare(cleanup)

    def run(self) -> None:
        chosen = [backlog for backlog in self._backlogs if backlog.name in self._options.only]
        for turn in range(self._options.rounds):
            for place, backlog in enumerate(chosen):
                self._drain_by_all(backlog, turn + place)
        if "latency" in self._options.only:
            self._measure_latencies()
        if "memory" in self._options.only and OURS in self._readers:
            self._measure_memory()

    def _prepare(self, cleanup: ExitStack) -> dict[str, Reader]:
        """Everyone has a slot before a backlog is written."""
        say("preparing the tables")
        warm_up = backlogs(self._options.warm_up)
        self._source.fill_documents(max(b.rows for b in (*self._backlogs, *warm_up) if b.table == "documents"))
        publishers: list[TopicReader] = []
        if PEER in self._options.readers:
            say("starting Debezium")
            publishers.append(self._start_debezium(cleanup))
        if OURS in self._options.readers:
            say("first start of tailrace capture")
            engine = TailraceEngine(self._folder / "tailrace", dsn=self._source.dsn, bootstrap=self._bootstrap)
            publishers.append(TopicReader(engine, self._source, self._bootstrap))
            publishers[-1].make_slot()
        if FLOOR in self._options.readers:
            self._source.create_slot(FLOOR)
            least = FloorEngine(self._folder / "floor", dsn=self._source.dsn, bootstrap=self._bootstrap, tables=TABLES)
            publishers.append(TopicReader(least, self._source, self._bootstrap))
        for backlog in warm_up:
            job = self._source.write(backlog)
            for publisher in publishers:
                say(f"  warm-up: {publisher.name:<9} {_described(publisher.drain(job))}")
        readers: dict[str, Reader] = {publisher.name: publisher for publisher in publishers}
        if LIMIT in self._options.readers:
            readers[LIMIT] = Limit(self._source)
        return {name: readers[name] for name in READERS if name in readers}

    def _start_debezium(self, cleanup: ExitStack) -> TopicReader:
        engine = DebeziumEngine(
            self._folder / "debezium",
            dsn=self._source.dsn,
            bootstrap=self._bootstrap,
            tables=TABLES,
            transaction_topic=self._options.transaction_topic,
        )
        cleanup.callback(engine.close)
        reader = TopicReader(engine, self._source, self._bootstrap)
        reader.stop()
        return reader

    def _drain_by_all(self, backlog: Backlog, turn: int) -> None:
        say(f"writing {backlog.rows} rows: {backlog.name}")
        job = self._source.write(backlog)
        names = list(self._readers)
        first = turn % len(names)
        for name in names[first:] + names[:first]:  # so that no engine always finds the caches warm
            drain = self._readers[name].drain(job)
            self.results.drains[backlog.name][name].append(drain)
            say(f"  {name:<9} {_described(drain)}")

    def _measure_latencies(self) -> None:
        seconds = max(3.0, LATENCY_SECONDS * min(1.0, self._options.scale))
        first_id = 1
        for reader in self._readers.values():
            if isinstance(reader, TopicReader) and reader.name != FLOOR:
                say(f"latency of {reader.name}: {latency.ROWS_PER_SECOND} rows/s for {seconds:.0f} s")
                found = latency.measure(reader, self._source.dsn, first_id=first_id, seconds=seconds)
                self.results.latencies[reader.name] = found
                first_id += 1_000_000
                say(f"  {reader.name:<9} p50 {found.p50_ms} ms, p99 {found.p99_ms} ms, max {found.max_ms} ms")

    def _measure_memory(self) -> None:
        """Ours alone from here on: the others' slots would only hold the log back."""
        for name in READERS:
            if name != OURS:
                self._source.drop_slot(name)
        for rows in MEMORY_ROWS * MEMORY_ROUNDS:
            scaled = max(1_000, int(rows * self._options.scale))
            say(f"memory for a transaction of {scaled} rows")
            job = self._source.write(Backlog(name="memory", table="orders", rows=scaled, write=Source.insert_at_once))
            drain = self._readers[OURS].drain(job)
            self.results.memory_by_rows[scaled].append(drain.peak_memory_mb)
            say(f"  {OURS:<9} {_described(drain)}")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _described(drain: Drain) -> str:
    return (
        f"{drain.rate:>9,.0f} rows/s, {drain.cpu_seconds / drain.rows * 1_000_000:.1f} CPU s per million,"
        f" peak {drain.peak_memory_mb:.0f} MB ({drain.seconds:.2f} s, {drain.seconds_from_slot:.2f} s from the slot)"
    )


@contextmanager
def _fresh_stack(
    servers: Sequence[str] = ("postgres", "kafka"), settings: Mapping[str, str] = POSTGRES_SETTINGS
) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    folder.chmod(0o755)  # as root, Postgres runs under another account
    # Stops the servers when our end of its pipe closes, however this process ends.
    code = "from tests.harness.servers.shared_servers import guard; guard()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ):
        say(f"starting {', '.join(servers)} in {folder}")
        stack = open_stack(folder, postgres_settings=settings)
        stack.up(servers)
        yield stack


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.capture", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    parser.add_argument("--rounds", type=int, default=1, help="how often each backlog is drained; the median counts")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_SCALE, help="scale of the backlogs drained before")
    parser.add_argument("--only", type=_names(PARTS), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--readers", type=_names(READERS), default=list(READERS), help=f"some of {','.join(READERS)}")
    parser.add_argument(
        "--memory", action=argparse.BooleanOptionalAction, default=True, help="peak memory for huge transactions"
    )
    parser.add_argument(
        "--transaction-topic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether Debezium writes `transaction` blocks, as ours does; it then also publishes a topic of them",
    )
    options = parser.parse_args()
    if not options.memory:
        options.only = [part for part in options.only if part != "memory"]
    return options


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = set(names) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    main()

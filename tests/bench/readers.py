"""One timed drain of a backlog, by the limit (`pg_recvlogical`) or by one of the two that publish to topics.

The clock runs from the first row that came out to the last: starting up, connecting and the server's own search for the
beginning are left out, for everyone alike. The time since the slot was taken is noted beside it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from tests.bench.arrivals import Arrivals
from tests.bench.engines import Engine
from tests.bench.meter import Meter
from tests.bench.source import PUBLICATION, Job, Source

_POLL_SECONDS = 0.005
_SLOT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    rows: int
    seconds: float
    seconds_from_slot: float
    cpu_seconds: float
    peak_memory_mb: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


class Reader(Protocol):
    name: str

    def drain(self, job: Job) -> Drain: ...


class Limit:
    """`pg_recvlogical` to /dev/null: what Postgres gives to a reader that does nothing with it."""

    name = "limit"
    slot = "limit"

    def __init__(self, source: Source) -> None:
        self._source = source
        self._binary = find_pg_recvlogical()
        source.create_slot(self.slot)

    def drain(self, job: Job) -> Drain:
        command = [str(self._binary), "--dbname", self._source.dsn, "--slot", self.slot, "--start", "--no-loop"]
        command += ["--file", os.devnull, "--endpos", str(job.end)]
        command += ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", "-o", "messages=true"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        taken = _wait_for_slot(self._source, self.slot, lambda: None)
        meter, first, peak = Meter(process.pid), 0.0, 0.0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            first = first or _wrote_something(process.pid)
            peak = max(peak, meter.peak_memory_mb())
            time.sleep(_POLL_SECONDS)
        last = time.monotonic()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"pg_recvlogical ended with exit code {process.returncode}")
        return Drain(
            rows=job.rows,
            seconds=last - (first or taken),
            seconds_from_slot=last - taken,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_memory_mb=peak,
        )


class TopicReader:
    """Ours or Debezium: watched at its topics, and counted afterwards."""

    def __init__(self, engine: Engine, source: Source, bootstrap: str) -> None:
        self.name = engine.prefix
        self.engine = engine
        self.arrivals = Arrivals(bootstrap, engine.prefix, engine.check)
        self._source = source

    def drain(self, job: Job) -> Drain:
        before = self.arrivals.ends(job.table, committed=True)
        self.arrivals.watch_finish()
        self.engine.start()
        try:
            taken = _wait_for_slot(self._source, self.name, self.engine.check)
            meter = Meter(self.engine.pid)
            cpu_before = meter.cpu_seconds()
            first = self.arrivals.wait_for_first(job.table, before)
            last = self.arrivals.wait_for_last(job.table, before, job.rows, job.finish)
            cpu_seconds, peak = meter.cpu_seconds() - cpu_before, meter.peak_memory_mb()
        finally:
            self.stop()
        self._check_count(job, before)
        return Drain(
            rows=job.rows,
            seconds=last - first,
            seconds_from_slot=last - taken,
            cpu_seconds=cpu_seconds,
            peak_memory_mb=peak,
        )

    def make_slot(self) -> None:
        """A first start, which makes slot and topics, and a stop."""
        self.engine.start()
        try:
            _wait_for_slot(self._source, self.name, self.engine.check)
        finally:
            self.stop()

    def start_and_catch_up(self) -> None:
        """Running, and with nothing left to read."""
        finish = self._source.write_finish()
        self.arrivals.watch_finish()
        self.engine.start()
        self.arrivals.wait_for_finish(finish)

    def stop(self) -> None:
        """Off the slot, so that the next reader has the machine for itself."""
        self.engine.stop()
        deadline = time.monotonic() + _SLOT_SECONDS
        while self._source.slot_is_active(self.name):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not let go of its slot")
            time.sleep(_POLL_SECONDS)

    def _check_count(self, job: Job, before: list[int]) -> None:
        """A fast reader that loses rows is not fast."""
        found = self.arrivals.count(job.table, before)
        if found < job.rows:
            raise RuntimeError(f"{self.name} published {found} of the {job.rows} rows of {job.name}")
        if found > job.rows:
            print(f"  {self.name} published {found - job.rows} rows of {job.name} twice", file=sys.stderr)


def find_pg_recvlogical() -> Path:
    """From the PATH, else from the pgserver package."""
    on_path = shutil.which("pg_recvlogical")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("pgserver")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "pginstall" / "bin" / "pg_recvlogical"
        if binary.exists():
            return binary
    raise RuntimeError("There is no pg_recvlogical here: install Postgres's client programs or PyPI's pgserver.")


def _wait_for_slot(source: Source, slot: str, check: Callable[[], None]) -> float:
    deadline = time.monotonic() + _SLOT_SECONDS
    while not source.slot_is_streaming(slot):
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"Nobody took the slot {slot}")
        time.sleep(_POLL_SECONDS)
    return time.monotonic()


def _wrote_something(pid: int) -> float:
    """Now, if the process has written to its file; 0 before that, and where the system does not count."""
    try:
        written = getattr(psutil.Process(pid).io_counters(), "write_chars", 0)
    except (AttributeError, psutil.Error):
        return 0.0
    return time.monotonic() if written else 0.0

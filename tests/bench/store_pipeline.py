"""A pipeline with both stores, run as a user runs it: one config file, `tailrace` commands as processes.

Times of what a command does inside are read from its own log; nothing in the process is touched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.engines import PARTITIONS, ROOT

SEARCH: Final = "search"
CACHE: Final = "cache"
STORES: Final = (SEARCH, CACHE)
_COMMAND: Final = (sys.executable, "-m", "cdc")
_END_SECONDS: Final = 3600
_STOP_SECONDS: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    dsn: str
    kafka: str
    elasticsearch: str
    redis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A bootstrap, cut in three: Spark comes up; rows are loaded and counted from the topic; all that follows."""

    rows: int
    start_seconds: float
    load_seconds: float
    finish_seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.load_seconds


class Running:
    """A command that runs until it is stopped."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def check(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"it ended with exit code {self.process.returncode}:\n{exit_reason(self.log)}")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class BenchPipeline:
    """`name` is its prefix, slot and publication."""

    def __init__(self, folder: Path, name: str, tables: Sequence[str], addresses: Addresses) -> None:
        self.name = name
        self.addresses = addresses
        self._folder = folder / name
        self._folder.mkdir()
        self.config = self._folder / "tailrace.toml"
        self.config.write_text(
            f'[source]\ndsn = "{addresses.dsn}"\nslot = "{name}"\npublication = "{name}"\n'
            f"tables = {json.dumps([f'public.{table}' for table in tables])}\nheartbeat_seconds = 1\n"
            f'[kafka]\nbootstrap = "{addresses.kafka}"\nprefix = "{name}"\npartitions = {PARTITIONS}\n'
            f'[stores.{SEARCH}]\nkind = "elasticsearch"\nurl = "{addresses.elasticsearch}"\n'
            f'[stores.{CACHE}]\nkind = "redis"\nurl = "{addresses.redis}"\n'
        )

    def topic(self, table: str) -> str:
        return f"{self.name}.public.{table}"

    def copy(self) -> None:
        """Run the initial snapshot, then capture until the topics are ready for a bootstrap, as in production."""
        self._run("snapshot")
        with self.running("capture") as capture:
            give_up_at = time.monotonic() + 120
            while self._attempt("bootstrap", SEARCH, "--dry-run") != 0:
                capture.check()
                if time.monotonic() > give_up_at:
                    raise RuntimeError(f"{self.name} cannot be bootstrapped:\n{exit_reason(self._log('bootstrap'))}")

    def bootstrap(self, store: str) -> Built:
        began = time.time()
        self._run("bootstrap", store, "--json")
        ended = time.time()
        events = read_log(self._log("bootstrap"))
        made, loaded = events["generation_created"], events["loaded"]
        return Built(
            rows=loaded["rows"],
            start_seconds=_when(made) - began,
            load_seconds=_when(loaded) - _when(made),
            finish_seconds=ended - _when(loaded),
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        log = self._log(arguments[0])
        running = Running(self._start(arguments, log), log)
        try:
            yield running
        except BaseException:
            running.stop()
            raise
        code = running.stop()
        if code != 0:
            raise RuntimeError(f"tailrace {' '.join(arguments)} ended with exit code {code}:\n{exit_reason(log)}")

    def _run(self, *arguments: str) -> None:
        code = self._attempt(*arguments)
        if code != 0:
            words = exit_reason(self._log(arguments[0]))
            raise RuntimeError(f"tailrace {' '.join(arguments)} ended with exit code {code}:\n{words}")

    def _attempt(self, *arguments: str) -> int:
        process = self._start(arguments, self._log(arguments[0]))
        try:
            return process.wait(_END_SECONDS)
        finally:
            Running(process, self._log(arguments[0])).stop()

    def _start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Its log is new each time."""
        command = [*_COMMAND, *arguments, "--config", str(self.config)]
        with log.open("wb") as errors:
            return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def _log(self, command: str) -> Path:
        return self._folder / f"{command}.log"


def read_log(log: Path) -> dict[str, dict[str, Any]]:
    """The last line of each event."""
    found = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"'):  # the others are Spark's, or of a command's result
            event = json.loads(line)
            found[event["event"]] = event
    return found


def exit_reason(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def _when(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()

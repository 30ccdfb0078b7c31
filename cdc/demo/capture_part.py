"""Capture as a part of the demo: the same command that a user runs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psycopg

from cdc import catalog
from cdc.config import Config, load_config
from cdc.demo.parts import Figure
from cdc.errors import TailraceError, TransientError
from cdc.names import topic
from cdc.topics import Topics

_CONFIG = """\
# Written by `tailrace demo`; every command takes it: tailrace tail public.orders --config {file}

[source]
dsn = "{dsn}"
slot = "tailrace_demo"
publication = "tailrace_demo"
tables = ["public.*"]

[kafka]
bootstrap = "{bootstrap}"
prefix = "shop"
"""

_START_SECONDS = 90.0
_STOP_SECONDS = 20.0


class CapturePart:
    """Started before the writer: what is written before the slot exists would not be in the topics."""

    name = "capture"

    def __init__(self, folder: Path, *, dsn: str, bootstrap: str) -> None:
        self._dsn = dsn
        self._bootstrap = bootstrap
        self.config_file = folder / "tailrace.toml"
        self._log_file = folder / "logs" / "capture.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._config: Config | None = None
        self._topics: Topics | None = None

    @property
    def healthy(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.config_file.write_text(
            _CONFIG.format(file=self.config_file, dsn=self._dsn, bootstrap=self._bootstrap), encoding="utf-8"
        )
        self._config = load_config(self.config_file)
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log = self._log_file.open("wb")
        command = [sys.executable, "-m", "cdc", "capture", "--config", str(self.config_file)]
        # Its own session: Ctrl-C reaches the demo, which stops its parts in order.
        self._process = subprocess.Popen(command, stderr=self._log, start_new_session=True)
        deadline = time.monotonic() + _START_SECONDS
        while b'"streaming"' not in self._log_file.read_bytes():
            if not self.healthy or time.monotonic() > deadline:
                self.stop()
                raise TransientError("Capture did not start.", remedy=f"See {self._log_file}.")
            time.sleep(0.1)

    def stop(self) -> None:
        """Raises what ended it early."""
        process, self._process = self._process, None
        if self._topics is not None:
            self._topics.close()
        if process is None:
            return
        died = process.poll()
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._log is not None:
            self._log.close()
        if died is not None:
            last = self._log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-2:]
            raise TailraceError(f"Capture ended with exit code {died}: {' '.join(last)}")

    def figures(self) -> Sequence[Figure]:
        assert self._config is not None  # noqa: S101  # set by start
        try:
            return [
                Figure("records", f"{self._records():,}"),
                Figure("behind", f"{self._behind_bytes() / 1000:,.1f} kB"),
            ]
        except (psycopg.Error, TailraceError):
            return [Figure("capture", "waiting for the servers")]

    def _records(self) -> int:
        """In the shop's topics so far, transaction marks included."""
        assert self._config is not None  # noqa: S101  # set by start
        if self._topics is None:
            self._topics = Topics(self._config.kafka)
        with psycopg.connect(self._dsn) as connection:
            tables = catalog.tables(connection, self._config.source.tables)
        names = {topic(self._config.kafka.prefix, t.schema, t.name): self._config.kafka.partitions for t in tables}
        return sum(sum(ends) for ends in self._topics.end_offsets(names).values())

    def _behind_bytes(self) -> int:
        assert self._config is not None  # noqa: S101  # set by start
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute(
                "select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) "
                "from pg_replication_slots where slot_name = %s",
                [self._config.source.slot],
            ).fetchone()
        return 0 if row is None else max(0, int(row[0]))

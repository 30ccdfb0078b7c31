"""The two that publish to topics, as something that can be started on its slot and taken off it again.

Ours is a new process each time. Debezium's worker lives through the whole run, so that its code is compiled; only its
connector starts and stops.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.bench.debezium import Debezium, connector_settings, install
from tests.bench.source import PUBLICATION

ROOT: Final = Path(__file__).resolve().parents[2]
PARTITIONS: Final = 4
DEBEZIUM_HEAP_MB: Final = 2048

# What makes Debezium fast: large batches from the queue to the producer, large compressed batches from there on.
_TUNED_CONNECTOR: Final = {
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "poll.interval.ms": "10",
    "extended.headers.enabled": "false",
    "message.prefix.exclude.list": "tailrace.*",  # the heartbeats of ours are none of its business
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": str(PARTITIONS),
}
_TUNED_WORKER: Final = {
    "producer.compression.type": "lz4",
    "producer.linger.ms": "5",
    "producer.batch.size": "524288",
    "producer.buffer.memory": "134217728",
    "producer.max.request.size": "8388608",
    "producer.enable.idempotence": "true",  # with it five requests may be under way in order; Connect's own is one
    "producer.max.in.flight.requests.per.connection": "5",
}


class Engine(Protocol):
    """`prefix` is also the name of its slot."""

    prefix: str

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check(self) -> None:
        """Raise, with what it said, if it is not well."""


class TailraceEngine:
    """`tailrace capture`, as a user runs it."""

    prefix = "tailrace"

    def __init__(self, folder: Path, *, dsn: str, bootstrap: str) -> None:
        folder.mkdir()
        self._config = folder / "tailrace.toml"
        self._config.write_text(
            f'[source]\ndsn = "{dsn}"\nslot = "{self.prefix}"\npublication = "{PUBLICATION}"\n'
            f'[kafka]\nbootstrap = "{bootstrap}"\nprefix = "{self.prefix}"\npartitions = {PARTITIONS}\n'
            "[snapshot]\ninitial = false\n"
        )
        self._command = [sys.executable, "-m", "cdc", "capture", "--config", str(self._config)]
        self.log = folder / "capture.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        if code != 0:
            raise RuntimeError(f"{self.prefix} ended with exit code {code}:\n{self._last_log_lines()}")

    def check(self) -> None:
        code = self._process.poll() if self._process else None
        if code is not None:
            raise RuntimeError(f"{self.prefix} ended with exit code {code}:\n{self._last_log_lines()}")

    def _last_log_lines(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class FloorEngine(TailraceEngine):
    """One call of Python a row and nothing else (see `floor`)."""

    prefix = "floor"

    def __init__(self, folder: Path, *, dsn: str, bootstrap: str, tables: list[str]) -> None:
        super().__init__(folder, dsn=dsn, bootstrap=bootstrap)
        _create_topics(bootstrap, [f"{self.prefix}.public.{table}" for table in tables])
        self._command = [sys.executable, "-m", "tests.bench.floor", dsn, bootstrap, self.prefix]


class DebeziumEngine:
    """The peer; `transaction_topic` says whether it publishes the beginnings and ends of transactions as well."""

    prefix = "debezium"
    _CHECK_SECONDS = 2.0

    def __init__(
        self, folder: Path, *, dsn: str, bootstrap: str, tables: list[str], transaction_topic: bool = True
    ) -> None:
        names = [f"{self.prefix}.public.{table}" for table in tables]
        _create_topics(bootstrap, names)
        settings = connector_settings(dsn, prefix=self.prefix, slot=self.prefix, publication=PUBLICATION)
        settings |= _TUNED_CONNECTOR | {"provide.transaction.metadata": str(transaction_topic).lower()}
        self._debezium = Debezium(
            install(),
            folder,
            dsn=dsn,
            bootstrap=bootstrap,
            connector=settings,
            worker=_TUNED_WORKER,
            heap_mb=DEBEZIUM_HEAP_MB,
        )
        self._checked_at = time.monotonic()
        self._debezium.wait_until_streaming()

    @property
    def pid(self) -> int:
        return self._debezium.pid

    def start(self) -> None:
        self._debezium.resume()

    def stop(self) -> None:
        self._debezium.halt()

    def check(self) -> None:
        """Asked often, but each look is a request that it has to answer."""
        if time.monotonic() - self._checked_at >= self._CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._debezium.check()

    def close(self) -> None:
        self._debezium.stop()


def _create_topics(bootstrap: str, names: list[str]) -> None:
    """With the policy and the shape of ours."""
    settings = {"cleanup.policy": "compact", "max.message.bytes": "8388608"}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 1})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1, config=settings) for name in names])
    for future in made.values():
        future.result(30)

"""One capture pipeline under test: its config file, its real `tailrace capture` processes, its fence and its checks.

The fixture `make_pipeline` (tests/acceptance/conftest.py) gives one with the test's own database, prefix and slot:

    pipeline = make_pipeline()                                   # or make_pipeline(capture={"transaction_events": 100})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()                                   # a process that has logged `streaming`
    ...
    pipeline.assert_same("t")                                    # fence, then content, versions and progress
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.lsn import LSN, Version
from cdc.names import Control, control_topic, topic
from tests.harness.comparison.comparer import assert_exactly_once, assert_same, source_reader
from tests.harness.kafka.records import Record, last_rows, read_topic
from tests.harness.kafka.topics import wait_until_readable
from tests.harness.network.proxy import Proxy
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually

Section = Mapping[str, Any]
MakePipeline = Callable[..., "Pipeline"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The fields of `pg_replication_slots` that tests need; `pid` is the walsender that reads the slot now."""

    confirmed: LSN
    restart: LSN
    pid: int | None


class Pipeline:
    """`database` and `bootstrap` are direct addresses, also if the capture under test goes through a proxy."""

    def __init__(self, *, database: Database, bootstrap: str, prefix: str, folder: Path, start: StartProcess) -> None:
        self.database = database
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.slot_name = f"tailrace_{prefix}"
        self.config = folder / "tailrace.toml"
        self._start = start

    def configure(
        self,
        *,
        proxy: Proxy | None = None,
        source: Section | None = None,
        kafka: Section | None = None,
        capture: Section | None = None,
        snapshot: Section | None = None,
        **others: Section,
    ) -> None:
        """Write the config file; the sections' keys override what suits a test. With `proxy`, Postgres is behind it.

        Without `snapshot` the pipeline begins with changes only: most tests are about those.
        """
        dsn = self.database.dsn
        if proxy is not None:
            parts = urlsplit(dsn)
            dsn = parts._replace(netloc=f"{parts.username}@{proxy.address}").geturl()
        sections = {
            # A short heartbeat, so that fences are passed soon.
            "source": {"dsn": dsn, "slot": self.slot_name, "heartbeat_seconds": 0.5, **(source or {})},
            "kafka": {"bootstrap": self.bootstrap, "prefix": self.prefix, "partitions": 2, **(kafka or {})},
            "capture": dict(capture or {}),
            "snapshot": {"initial": False} if snapshot is None else dict(snapshot),
            # Several pipelines are tested at once, and there is one default port.
            "dashboard": {"enabled": False},
            **others,
        }
        lines = [
            line
            for name, keys in sections.items()
            for line in (f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items()))
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def launch(self) -> Process:
        """Start `tailrace capture` without waiting."""
        return self._start("capture", "--config", str(self.config))

    def start(self, deadline_seconds: float = 60.0) -> Process:
        """Start `tailrace capture` and wait until it streams."""
        process = self.launch()
        process.wait_for_line('"streaming"', deadline_seconds)
        return process

    def run(self, command: str, *arguments: str) -> Process:
        """Start another `tailrace` command on this pipeline."""
        return self._start(command, "--config", str(self.config), *arguments)

    def sessions(self, process: Process) -> int:
        """The number of capture sessions that have reached streaming: one, and one more after each retry."""
        return process.errors.count('"streaming"')

    def wait_for_session(self, process: Process, number: int, deadline_seconds: float = 60.0) -> None:
        process.wait_for(
            lambda: self.sessions(process) >= number, deadline_seconds, f"start number {number} of the stream"
        )

    # -- what is where -----------------------------------------------------------------------------------------

    def topic(self, table: str) -> str:
        schema, _, name = table.rpartition(".")
        return topic(self.prefix, schema or "public", name)

    def records(self, table: str) -> list[Record]:
        """Every committed record of a table's topic."""
        return read_topic(self.bootstrap, self.topic(table))

    def rows_published(self, table: str) -> int:
        """The number of committed records in the topic; 0 without a topic or a broker."""
        try:
            return len(self.records(table))
        except (AssertionError, KafkaException):
            return 0

    def end_offsets(self, table: str) -> int:
        """The sum of the topic's end offsets, open transactions included."""
        # A reader of committed records would be told where the first open transaction begins.
        settings = {"group.id": "harness", "isolation.level": "read_uncommitted"}
        consumer = Consumer({"bootstrap.servers": self.bootstrap, **settings})
        try:
            name = self.topic(table)
            partitions = consumer.list_topics(name, timeout=10).topics[name].partitions
            return sum(consumer.get_watermark_offsets(TopicPartition(name, each), timeout=10)[1] for each in partitions)
        finally:
            consumer.close()

    def progress_records(self) -> list[dict[str, Any]]:
        """The progress records that still exist, oldest first."""
        return [record.value for record in read_topic(self.bootstrap, control_topic(self.prefix, Control.PROGRESS))]

    def published_to(self) -> LSN:
        """Everything committed before this LSN is in the topics; 0 while it is unknown."""
        try:
            records = self.progress_records()
        except (AssertionError, KafkaException):
            return LSN(0)
        return LSN(records[-1]["confirm_lsn"]) if records else LSN(0)

    def slot(self) -> Slot:
        query = (
            "SELECT confirmed_flush_lsn::text, restart_lsn::text, active_pid FROM pg_replication_slots"
            " WHERE slot_name = %s"
        )
        ((confirmed, restart, pid),) = self.database.execute(query, [self.slot_name])
        return Slot(LSN.parse(confirmed), LSN.parse(restart), pid)

    # -- fences and checks -------------------------------------------------------------------------------------

    def fence(self, deadline_seconds: float = 60.0, while_running: Process | None = None) -> LSN:
        """Wait until everything committed so far is in the topics; returns the LSN of that moment."""
        self.database.execute("SELECT pg_logical_emit_message(true, 'test.fence', '')")
        lsn = self.database.lsn()
        wait: Callable[..., object] = while_running.wait_for if while_running else eventually
        wait(lambda: self.published_to() >= lsn, deadline_seconds, f"the topics to hold everything before {lsn}")
        wait_until_readable(self.bootstrap, self.prefix, deadline_seconds)
        return lsn

    def assert_same(
        self, *tables: str, deadline_seconds: float = 60.0, while_running: Process | None = None
    ) -> dict[str, list[Record]]:
        """After a fence, the topics' content equals the source's, no event is there twice, and progress only rose.

        Returns the compared records by table.
        """
        self.fence(deadline_seconds, while_running)
        records = {table: self.records(table) for table in tables}
        described = self.database.describe(*tables)
        held = dict(zip(described, records.values(), strict=True))
        source = source_reader(self.database.dsn)
        assert_same(described, source, lambda table: last_rows(table, held[table]), deadline_seconds=0)
        for each in records.values():
            assert_exactly_once(each)
        self.assert_progress_rises()
        return records

    def assert_progress_rises(self) -> None:
        """No progress record is below the one before it, since a crash would then publish rows again."""
        last = Version(0, 0)
        for record in self.progress_records():
            version = Version(record["position"], record["seq"])
            assert version >= last, f"progress fell from {last} to {version}"
            last = version


def peak_memory_bytes(process: Process) -> int:
    """The process's largest resident memory so far, as the kernel counts it (Linux)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    ((peak,),) = [line.split()[1:2] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


def _toml(value: Any) -> str:
    """JSON's strings, numbers and arrays are TOML's; its objects are not."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)

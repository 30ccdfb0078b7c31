"""The slot's end, on a real server: how long it lasts, that it is lost, and what is done before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from cdc.config import Config, parse_config
from cdc.monitoring.alerts.slot_guard import SlotGuard
from cdc.monitoring.facts.source import SourceReader
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.status_builder import Readings, StatusBuilder
from cdc.monitoring.status_record import HealthLevel, PipelineStatus
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_postgres import OwnPostgres

_CONFIG = """
[source]
dsn = "{dsn}"
slot = "seen"
[kafka]
bootstrap = "127.0.0.1:1"
prefix = "shop"
"""
_FLOOD = "SELECT count(pg_logical_emit_message(false, 'flood', repeat('x', 1000000))) FROM generate_series(1, 6)"


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[OwnPostgres]:
    """It gives a slot up that holds more than some 32 MB."""
    own = OwnPostgres(tmp_path, max_slot_wal_keep_size="32MB", wal_keep_size="0", max_wal_size="48MB")
    own.execute("CREATE PUBLICATION seen FOR ALL TABLES")
    own.execute("SELECT pg_create_logical_replication_slot('seen', 'pgoutput')")
    yield own
    own.close()


class Eye:
    """Looks at the source alone; nothing was ever published."""

    def __init__(self, config: Config) -> None:
        self._reader = SourceReader(config)
        self._assembler = StatusBuilder(config, WalClock())

    def poll(self) -> PipelineStatus:
        facts = self._reader.read()
        return self._assembler.assemble(Readings(now=facts.time, source=facts, kafka_facts=None, stores={}))

    def close(self) -> None:
        self._reader.close()


def _config(postgres: OwnPostgres, folder: Path, more: str = "") -> Config:
    return parse_config(_CONFIG.format(dsn=postgres.dsn) + more, file=folder / "tailrace.toml", environment={})


def test_a_slot_that_nobody_reads_counts_down_and_is_then_called_lost(postgres: OwnPostgres, tmp_path: Path) -> None:
    """Headroom falls, the time left is shown while it does, and an invalidated slot is never shown as alive."""
    eye = Eye(_config(postgres, tmp_path))
    first = eye.poll()
    assert first.slot.health.state is HealthLevel.OK
    assert first.slot.left_bytes is not None
    postgres.execute(_FLOOD)
    second = eye.poll()
    assert second.slot.left_bytes is not None
    assert second.slot.left_bytes < first.slot.left_bytes
    assert second.slot.retained_bytes is not None
    assert second.slot.retained_bytes > 6_000_000
    assert second.slot.seconds_left is not None
    assert second.slot.health.state is HealthLevel.BEHIND
    assert "the server invalidates the slot in" in second.slot.health.reason

    def is_lost() -> bool:
        postgres.execute(_FLOOD)
        postgres.execute("SELECT pg_switch_wal()")
        postgres.execute("CHECKPOINT")
        return eye.poll().slot.wal_status == "lost"

    eventually(is_lost, 60, "the server to give the slot up")
    lost = eye.poll()
    eye.close()
    assert lost.slot.health.state is HealthLevel.DOWN
    assert "invalidated" in lost.slot.health.reason
    assert lost.slot.health.remedy == "tailrace recover"
    assert lost.slot.invalidation_reason == "wal_removed"
    assert not lost.is_ready


def test_before_the_limit_it_warns_or_gives_the_slot_up_as_the_config_says(
    postgres: OwnPostgres, tmp_path: Path
) -> None:
    """Off by default; where it is asked for, also a slot that somebody reads is dropped, and that is said."""
    posted: list[dict[str, Any]] = []
    with closing(psycopg.connect(postgres.dsn, replication="database", autocommit=True)) as reader:
        answer = reader.pgconn.exec_(
            b"START_REPLICATION SLOT seen LOGICAL 0/0 (proto_version '1', publication_names 'seen')"
        )
        assert answer.status == pq.ExecStatus.COPY_BOTH
        postgres.execute(_FLOOD)
        for action, left in (("warn", 1), ("webhook", 1), ("give-up", 0)):
            more = f'[slot]\naction = "{action}"\nact_percent = 10\n[alerts]\nwebhook = "http://127.0.0.1:9/"\n'
            config = _config(postgres, tmp_path, more)
            eye = Eye(config)
            record = eye.poll()
            eye.close()
            assert record.slot.used_percent is not None
            assert record.slot.used_percent > 10
            SlotGuard(config, posted.append).consider(record)
            slots = postgres.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'seen'")
            assert slots == [(left,)], action
    assert [each["action"] for each in posted] == ["webhook", "give-up"]
    assert "The slot was dropped" in posted[-1]["reason"]

"""Each state of a hop with its reason and its remedy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.config import Config
from cdc.monitoring.alerts.conditions import conditions_of
from cdc.monitoring.health_rules import HealthRules
from cdc.monitoring.status_record import HealthLevel, SlotStatus, StoreStatus, TopicsStatus
from cdc.units import in_bytes, in_time
from tests.harness.dashboard.sample_statuses import (
    SCENES,
    busy,
    idle,
    row_parked,
    shop_config,
    slot_nearly_lost,
    store_down,
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return shop_config(tmp_path, "[lag]\nmax_seconds = 60\nstalled_seconds = 30\n")


def test_an_idle_and_a_busy_pipeline_are_well(config: Config) -> None:
    """An idle and a busy pipeline have no alert and are ready."""
    for scene in (idle, busy):
        record = scene(config)
        assert {health.state for health in record.hops.values()} == {HealthLevel.OK}
        assert record.is_ready
        assert not conditions_of(record)


def test_a_store_that_does_not_answer_is_down_alone(config: Config) -> None:
    """Only the store that does not answer is down, with the reason and the remedy."""
    record = store_down(config)
    bad = {hop: health for hop, health in record.hops.items() if health.state is not HealthLevel.OK}
    assert list(bad) == ["store cache"]
    assert bad["store cache"].state is HealthLevel.DOWN
    assert "Connection refused" in bad["store cache"].reason
    assert bad["store cache"].remedy
    assert not record.is_ready


def test_a_row_that_capture_parked_is_not_well_anywhere(config: Config) -> None:
    """Capture and every store show the parked row with the remedy; the pipeline is ready and has one alert."""
    record = row_parked(config)
    bad = {hop: health for hop, health in record.hops.items() if health.state is not HealthLevel.OK}
    assert list(bad) == ["topics", "store search", "store cache", "store warehouse"]
    assert {health.state for health in bad.values()} == {HealthLevel.PARKED}
    assert bad["topics"].reason == "1 row is parked: too large to publish, so in no store."
    assert bad["store cache"].remedy == "tailrace parked list --store cache"
    assert record.is_ready
    assert {name: each.state for name, each in conditions_of(record).items()} == {"topics parked": HealthLevel.PARKED}


def test_a_parked_row_and_a_store_that_is_down_give_two_alerts(config: Config) -> None:
    """A store that is down and has parked rows gives two alerts."""
    assert conditions_of(store_down(config)).keys() >= {"store cache", "store cache parked"}


def test_a_slot_near_its_limit_says_how_long_it_lasts(config: Config) -> None:
    """A slot near its limit shows the time left, and capture, which is stopped, is red."""
    record = slot_nearly_lost(config)
    assert record.slot.health.state is HealthLevel.BEHIND
    assert "95 %" in record.slot.health.reason
    assert record.topics.health.state is HealthLevel.DOWN
    assert record.topics.health.remedy == "tailrace run"
    assert {store.health.state for store in record.stores} == {HealthLevel.BEHIND}
    assert "capture is behind" in record.stores[0].health.reason


@pytest.mark.parametrize(
    ("slot", "state", "word"),
    [
        (SlotStatus(name="s", exists=True, active=True, wal_status="lost"), HealthLevel.DOWN, "invalidated"),
        (
            SlotStatus(name="s", exists=True, active=True, wal_status="unreserved"),
            HealthLevel.BEHIND,
            "next checkpoint",
        ),
        (
            SlotStatus(name="s", exists=True, active=True, wal_status="extended", seconds_left=60),
            HealthLevel.BEHIND,
            "60 s",
        ),
        (SlotStatus(name="s", exists=False), HealthLevel.DOWN, "does not exist"),
    ],
)
def test_each_way_to_lose_a_slot_has_its_words(config: Config, slot: SlotStatus, state: HealthLevel, word: str) -> None:
    """Each cause of a lost slot has its own reason, and a lost slot is never shown as merely lagging."""
    judged = HealthRules(config).slot(slot, is_known=True, has_begun=True)
    assert judged.health.state is state
    assert word in judged.health.reason
    assert judged.health.remedy


def test_a_stall_is_told_from_being_behind(config: Config) -> None:
    """Lag with progress is a warning, and lag without progress is an alarm."""
    judge, topics = HealthRules(config), TopicsStatus()
    store = StoreStatus(name="cache", kind="redis", seconds=100.0, bytes=10, records=5)
    moving = judge.store(store, topics, still_seconds=1.0, own_seconds=100.0)
    still = judge.store(store, topics, still_seconds=31.0, own_seconds=100.0)
    paused = judge.store(replace(store, paused=True), topics, still_seconds=31.0, own_seconds=100.0)
    assert [moving.health.state, still.health.state, paused.health.state] == [
        HealthLevel.BEHIND,
        HealthLevel.STALLED,
        HealthLevel.PAUSED,
    ]


def test_the_record_is_plain_json_in_every_scene(config: Config) -> None:
    """The record is plain JSON without a connection string in every scene."""
    for scene in SCENES.values():
        text = json.dumps(scene(config).as_json())
        assert "127.0.0.1:1" not in text


def test_words() -> None:
    """Figures are written as people write them."""
    assert [in_time(each) for each in (0.25, 42, 600, 9000, 400_000)] == ["0.2 s", "42 s", "10 min", "2.5 h", "4.6 d"]
    assert [in_bytes(each) for each in (12, 1_500, 250_000_000)] == ["12 bytes", "1.5 kB", "250 MB"]

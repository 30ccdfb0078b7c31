"""From readings to the status record: what a store has, what it lacks, and what is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.config import Config
from cdc.lsn import LSN, Version
from cdc.monitoring.facts.kafka import KafkaFacts
from cdc.monitoring.facts.published_offsets import PublishedOffsets
from cdc.monitoring.facts.source import SlotRow, SourceFacts
from cdc.monitoring.facts.store import StoreFacts
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.status_builder import Readings, StatusBuilder
from cdc.monitoring.status_record import HealthLevel, PipelineStatus, ProcessError, StoreStatus
from cdc.positions.progress import Progress
from cdc.positions.store_notes import Refusal
from cdc.stores.contract import Generation, Position, TopicPosition
from cdc.tables.recorded_state import TableState, TableStates
from tests.harness.dashboard.sample_statuses import shop_config

TOPIC = "shop.public.orders"
TABLE = TableState(schema="public", table="orders", topic=TOPIC, key=["id"], storage="", columns=[])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return shop_config(tmp_path)


def _source(lsn: int, time: float, **slot: Any) -> SourceFacts:
    row = {"active": True, "wal_status": "reserved", "left_bytes": None, "invalidation_reason": None}
    return SourceFacts(lsn=LSN(lsn), time=time, slot=SlotRow(confirmed=LSN(lsn), restart=LSN(0), **{**row, **slot}))


def _log(lsn: int, time: float, ends: list[int], **more: Any) -> KafkaFacts:
    progress = Progress(
        state="streaming", position=more.pop("base", 0) + lsn, seq=1, base=0, confirm_lsn=lsn,
        commit_time_us=int(time * 1e6), system_identifier="1", timeline=1, publication="", publication_tables={},
        topic_ids={TOPIC: "id"}, end_offsets={TOPIC: ends}, written_ms=int(time * 1000),
    )  # fmt: skip
    published = more.pop("published", PublishedOffsets())
    published.add([progress])
    # Behind the last record lies the transaction's own marker.
    return KafkaFacts(
        progress=progress,
        ends={TOPIC: [end + 1 for end in ends]},
        states=TableStates(tables={"1": TABLE}),
        published=published,
        **more,
    )


def _store(lsn: int, offsets: list[int], time: float) -> StoreFacts:
    position = Position(
        topics={TOPIC: TopicPosition("id", tuple(offsets))}, version=Version(lsn, 1), lsn=lsn,
        caught_up_ms=int(time * 1000), written_ms=int(time * 1000),
    )  # fmt: skip
    generation = Generation(number=1, created_ms=0, state="settled")
    return StoreFacts(serving=generation, position=position, loading=None)


def _cache(record: PipelineStatus) -> StoreStatus:
    return record.stores[0]


def _poll(
    assembler: StatusBuilder, now: float, facts: SourceFacts | None, log: KafkaFacts | None, store: StoreFacts | None,
    **problems: str,
) -> PipelineStatus:  # fmt: skip
    readings = Readings(now=now, source=facts, kafka_facts=log, stores={"cache": store}, problems=problems)
    return assembler.assemble(readings)


def test_what_capture_parked_is_missing_in_the_stores_that_read_its_table(config: Config) -> None:
    """Rows parked by capture add to those parked by the store; messages and tables not captured do not count."""
    parked = {("", TOPIC): 2, ("cache", TOPIC): 3, ("", "shop.message"): 1, ("", "shop.public.removed"): 1}
    log = _log(1000, 100.0, [5, 5], parked=parked)
    record = _poll(StatusBuilder(config, WalClock()), 100.0, _source(1000, 100.0), log, _store(1000, [5, 5], 100.0))
    assert (record.topics.parked, [table.parked for table in record.tables]) == (2, [2])
    assert (_cache(record).parked, _cache(record).parked_by_capture) == (5, 2)


def test_a_stopped_sync_with_nothing_to_apply_is_not_behind(config: Config) -> None:
    """A store that has every record has no lag, although heartbeats advance the log."""
    assembler = StatusBuilder(config, WalClock())
    _poll(assembler, 100.0, _source(1000, 100.0), _log(1000, 100.0, [5, 5]), _store(1000, [5, 5], 100.0))
    record = _poll(assembler, 9000.0, _source(7000, 9000.0), _log(7000, 9000.0, [5, 5]), _store(1000, [5, 5], 100.0))
    assert (_cache(record).seconds, _cache(record).records) == (0.0, 0)
    assert _cache(record).health.state is HealthLevel.OK


def test_a_paused_store_is_behind_since_the_first_row_that_it_lacks_not_since_its_pause(config: Config) -> None:
    """The lag of a paused store is the age of the first row that it lacks."""
    assembler, published = StatusBuilder(config, WalClock()), PublishedOffsets()
    store = _store(1000, [6, 6], 100.0)
    for now, ends in ((100.0, [5, 5]), (7000.0, [5, 5]), (7010.0, [9, 5])):
        log = _log(int(now) * 10, now, ends, published=published)
        record = _poll(assembler, now, _source(int(now) * 10, now), log, store)
    assert (_cache(record).seconds, _cache(record).records) == (10.0, 4)


def test_what_is_published_and_not_applied_is_as_old_as_its_commit(config: Config) -> None:
    """A store's lag is measured from the last moment at which it had everything."""
    assembler = StatusBuilder(config, WalClock())
    _poll(assembler, 100.0, _source(1000, 100.0), _log(1000, 100.0, [5, 5]), _store(1000, [6, 6], 100.0))
    record = _poll(assembler, 130.0, _source(2000, 130.0), _log(2000, 130.0, [9, 5]), _store(1000, [6, 6], 100.0))
    assert _cache(record).seconds == 30.0
    assert _cache(record).applied_until == 100.0
    assert (_cache(record).records, _cache(record).bytes) == (4, 1000)
    assert record.topics.seconds == 0.0
    assert [each.applied for each in record.tables[0].partitions] == [{"cache": 6}, {"cache": 6}]


def test_when_capture_is_dead_everything_grows_older(config: Config) -> None:
    """When capture is dead, all lags grow with the source's log."""
    assembler = StatusBuilder(config, WalClock())
    log, store = _log(1000, 100.0, [5, 5]), _store(1000, [6, 6], 100.0)
    _poll(assembler, 100.0, _source(1000, 100.0), log, store)
    ages = []
    for now in (110.0, 150.0):
        record = _poll(assembler, now, _source(int(now) * 100, now, active=False), log, store)
        ages.append((record.topics.seconds, _cache(record).seconds))
        assert record.topics.health.state is HealthLevel.DOWN
    assert ages == [(10.0, 10.0), (50.0, 50.0)]


def test_a_refusal_comes_before_what_is_seen_from_outside(config: Config) -> None:
    """A refusal recorded in Kafka takes precedence, until another capture reads the slot."""
    notes = {
        "capture": Refusal(where="capture", reason="Topic t is gone.", remedy="tailrace recover"),
        "store cache": Refusal(where="store cache", reason="It may lack deletes.", remedy="tailrace bootstrap cache"),
    }
    log, store = _log(1000, 100.0, [9, 5], refusals=notes), _store(1000, [6, 6], 100.0)
    record = _poll(StatusBuilder(config, WalClock()), 900.0, _source(9000, 900.0, active=False), log, store)
    assert record.topics.health.reason == "Refused: Topic t is gone."
    assert record.topics.health.remedy == "tailrace recover"
    assert _cache(record).health.remedy == "tailrace bootstrap cache"
    assert not record.is_ready
    record = _poll(StatusBuilder(config, WalClock()), 110.0, _source(1000, 110.0), _log(1000, 109.0, [5, 5]), store)
    assert record.topics.health.state is HealthLevel.OK


def test_what_run_knows_of_a_refusal_is_shown_while_kafka_is_away(config: Config) -> None:
    """While Kafka is away the supervisor's own record of a refusal is shown; a retried error is no refusal."""
    said = ProcessError(where="capture", reason="Refused: Slot s is gone.", remedy="tailrace recover", refused=True)
    again = ProcessError(where="capture", reason="Retrying: Kafka did not answer.")
    restore = "Start the brokers, or restore the connection to them."
    for process_errors, remedy in (([said], "tailrace recover"), ([again], restore)):
        readings = Readings(
            now=900.0, source=_source(9000, 900.0, active=False), kafka_facts=None, stores={},
            problems={"log": "no answer"}, process_errors=process_errors,
        )  # fmt: skip
        assert StatusBuilder(config, WalClock()).assemble(readings).topics.health.remedy == remedy


def test_while_the_source_is_away_what_was_seen_of_it_counts(config: Config) -> None:
    """While the source is away lag in bytes is unknown, and a store that had everything still has everything."""
    assembler = StatusBuilder(config, WalClock())
    log, store = _log(1000, 100.0, [5, 5]), _store(1000, [6, 6], 100.0)
    _poll(assembler, 100.0, _source(1000, 100.0), log, store)
    record = _poll(assembler, 160.0, _source(1000, 100.0), log, store, source="no answer")
    assert (_cache(record).seconds, _cache(record).bytes) == (0.0, None)
    assert record.source.health.state is HealthLevel.DOWN
    assert record.slot.health.state is HealthLevel.UNKNOWN


def test_a_store_that_stands_still_with_something_to_do_is_stalled(config: Config) -> None:
    """A store is stalled after [lag] stalled_seconds without progress, and not earlier."""
    assembler = StatusBuilder(config, WalClock())
    states = []
    for now in (100.0, 130.0, 170.0):
        record = _poll(assembler, now, _source(2000, now), _log(2000, now, [9, 5]), _store(1000, [6, 6], 100.0))
        states.append(_cache(record).health.state)
    assert states == [HealthLevel.OK, HealthLevel.OK, HealthLevel.STALLED]


def test_time_left_is_shown_only_while_the_limit_comes_nearer(config: Config) -> None:
    """The time left is computed from the last minute, and only while the limit comes nearer."""
    assembler = StatusBuilder(config, WalClock())
    lefts = []
    for now, left in ((100.0, 1000), (110.0, 900), (120.0, 800), (200.0, 800), (270.0, 900)):
        record = _poll(assembler, now, _source(5, now, left_bytes=left), None, None)
        lefts.append(record.slot.seconds_left)
    assert lefts[0] is None
    assert lefts[2] == 80.0
    assert lefts[-1] is None

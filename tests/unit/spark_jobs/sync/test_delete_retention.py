"""When a running store counts as caught up, and when a delete may have been removed before it was read."""

from __future__ import annotations

import pytest

from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.positions.offset_index import Point
from spark_jobs.sync.delete_retention import DeleteRetention, is_too_old

HOUR_MS = 3_600_000


class _Broker:
    """A broker's time and end offsets; `clock` is our own time."""

    def __init__(self) -> None:
        self.now_ms = 100 * HOUR_MS
        self.end = 5
        self.clock = 0.0
        self.away = False

    def retention(self) -> DeleteRetention:
        return DeleteRetention(
            "cache",
            caught_up_ms=self.now_ms,
            retention_ms=10 * HOUR_MS,
            now_ms=self._answer,
            ends=lambda: {"t": [self.end]},
            clock=lambda: self.clock,
        )

    def passes(self, hours: float, ours: float | None = None) -> None:
        """Advance the broker's clock, and ours."""
        self.now_ms += round(hours * HOUR_MS)
        self.clock += (hours if ours is None else ours) * 3600

    def _answer(self) -> int:
        if self.away:
            raise TransientError("Kafka did not answer.")
        return self.now_ms


@pytest.fixture
def broker() -> _Broker:
    return _Broker()


def _point(broker_ms: int) -> Point:
    return Point(8, Version(8, 0), {"t": [5]}, 0, 0, broker_ms)


def test_a_store_that_has_read_to_the_end_is_caught_up_now(broker: _Broker) -> None:
    """A store at the broker's end offsets is caught up now."""
    retention = broker.retention()
    broker.passes(1)
    assert retention.poll({"t": [5]}, None)
    assert retention.caught_up_ms == broker.now_ms


def test_silence_is_not_the_end(broker: _Broker) -> None:
    """A store that does not read existing records is not caught up, and refuses in the end."""
    retention = broker.retention()
    for _ in range(9):
        broker.passes(1)
        assert not retention.poll({"t": [4]}, None)
    broker.passes(1)
    with pytest.raises(RefusedError, match="needs a bootstrap"):
        retention.poll({"t": [4]}, None)


def test_a_store_that_is_always_a_little_behind_goes_on(broker: _Broker) -> None:
    """A store with constant lag is caught up as of the progress record that it covers."""
    retention = broker.retention()
    for _ in range(50):
        broker.passes(1)
        retention.poll({"t": [4]}, _point(broker.now_ms - 2 * HOUR_MS))
    assert retention.caught_up_ms == broker.now_ms - 2 * HOUR_MS


def test_a_clock_that_stood_still_hides_nothing(broker: _Broker) -> None:
    """After a suspend, in which our clock counts a minute and the broker's a month, the store refuses."""
    retention = broker.retention()
    broker.passes(30 * 24, ours=1 / 30)
    with pytest.raises(RefusedError, match="720"):
        retention.poll({"t": [5]}, _point(broker.now_ms))


def test_the_broker_is_asked_now_and_then_only(broker: _Broker) -> None:
    """The broker is queried at intervals of our clock, and a missing answer proves nothing."""
    retention = broker.retention()
    broker.passes(1, ours=0.001)
    assert not retention.poll({"t": [5]}, None)
    broker.away = True
    broker.passes(1)
    assert not retention.poll({"t": [5]}, None)
    broker.away = False
    broker.passes(1)
    assert retention.poll({"t": [5]}, None)


def test_a_brokers_clock_that_is_set_back_leaves_no_time_in_the_future(broker: _Broker) -> None:
    """After the broker's clock is set back, a time in the future does not count for longer."""
    retention = broker.retention()
    broker.passes(-24, ours=1)
    assert retention.poll({"t": [4]}, _point(broker.now_ms + 24 * HOUR_MS))
    assert retention.caught_up_ms == broker.now_ms


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, False), (9 * HOUR_MS, False), (10 * HOUR_MS, True), (-60_000, False), (-2 * HOUR_MS, True)],
)
def test_a_time_in_the_future_is_no_evidence(age: int, expected: bool) -> None:
    """A time in the future proves nothing, except for a few seconds between two brokers."""
    assert is_too_old(100 * HOUR_MS - age, 100 * HOUR_MS, 10 * HOUR_MS) is expected

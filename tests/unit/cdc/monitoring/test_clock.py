"""The age of an LSN, the speed of figures, and how long they have not changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.trends import StallDetector, Trends


def test_an_lsn_has_the_time_of_its_last_observation() -> None:
    """Between two observations the earlier one counts, so that an age is never understated."""
    clock = WalClock()
    for time, lsn in ((10.0, 100), (20.0, 200), (30.0, 300)):
        clock.see(lsn, time)
    assert clock.until(250) == 20.0
    assert clock.until(300) == 30.0
    assert clock.until(99) is None


def test_a_log_that_stands_still_is_seen_again() -> None:
    """Without writes the newest observation of the same LSN counts."""
    clock = WalClock()
    clock.see(100, 10.0)
    clock.see(100, 50.0)
    assert clock.until(100) == 50.0


def test_lower_lsns_of_another_server_discard_old_observations() -> None:
    """When the LSNs fall, observations above them are discarded."""
    clock = WalClock()
    clock.see(10_000, 10.0)
    clock.see(500, 20.0)
    assert clock.until(400) is None
    assert clock.until(500) == 20.0
    assert clock.newest_lsn == 500


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40), st.integers(0, 50))
def test_order_of_arrival_does_not_matter(sightings: list[tuple[int, int]], lsn: int) -> None:
    """The latest time at or below the LSN counts, unless a later observation contradicts it."""
    clock = WalClock()
    for time, seen in sightings:
        clock.see(seen, float(time))
    true = [
        (time, min(other for at, other in sightings if at >= time))  # a later, lower one holds for earlier times too
        for time, _ in sightings
    ]
    assert clock.until(lsn) == max((float(time) for time, seen in true if seen <= lsn), default=None)


def test_thinning_keeps_the_newest_exact_and_the_oldest_known() -> None:
    """With days of observations an old LSN is overstated in age and never unknown."""
    clock = WalClock()
    for second in range(50_000):
        clock.see(second * 10, float(second))
    assert clock.until(499_990) == 49_999.0
    found = clock.until(5_000)
    assert found is not None
    assert 0 <= found <= 500


def test_speed_is_measured_over_the_window() -> None:
    """Only observations in the window count for the speed."""
    trends = Trends(10.0)
    speeds = [trends.rate("x", float(second), second * 10.0) for second in range(30)]
    assert speeds[0] is None
    assert speeds[-1] == 10.0
    assert trends.rate("x", 31.0, None) is None


def test_a_counter_that_begins_again_has_no_speed_below_zero() -> None:
    """A topic that was created again gives no negative speed; a figure that may fall still has its speed."""
    counters, levels = Trends(10.0, of_counters=True), Trends(10.0)
    figures = [100.0, 110.0, 3.0, 13.0]
    assert [counters.rate("x", float(at), value) for at, value in enumerate(figures)] == [None, 10.0, None, 10.0]
    assert [levels.rate("x", float(at), value) for at, value in enumerate(figures[:3])][-1] == -48.5


def test_standing_still_counts_only_while_there_is_something_to_do() -> None:
    """An idle store is not stalled, and any progress starts the measurement again."""
    motion = StallDetector()
    assert motion.still_since("s", 1, idle=False, now=100.0, at_first=90.0) == 90.0
    assert motion.still_since("s", 1, idle=False, now=110.0, at_first=0.0) == 90.0
    assert motion.still_since("s", 2, idle=False, now=120.0, at_first=0.0) == 120.0
    assert motion.still_since("s", 2, idle=True, now=130.0, at_first=0.0) == 130.0
    assert motion.still_since("s", 2, idle=False, now=140.0, at_first=0.0) == 130.0

"""Rates of change of figures, and how long a position has not changed. No I/O: the caller passes the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class Trend:
    """The values of one figure over a time window."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Add a value. A value that is not newer than the last one is ignored."""
        if self._seen and now <= self._seen[-1][0]:
            return
        self._seen.append((now, value))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._window_seconds:
            self._seen.popleft()

    @property
    def newest(self) -> float:
        """The last value; 0 if there is none."""
        return self._seen[-1][1] if self._seen else 0.0

    def per_second(self) -> float | None:
        """Return the rate of change over the window; None with fewer than two values."""
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first)


class Trends:
    """Trends by name. The trend of a figure that becomes unknown is discarded.

    `of_counters`: the figures only rise. A figure that falls has started again (its topic was recreated), so its
    earlier values are discarded.
    """

    def __init__(self, window_seconds: float, *, of_counters: bool = False) -> None:
        self._window_seconds = window_seconds
        self._of_counters = of_counters
        self._trends: dict[Hashable, Trend] = {}

    def rate(self, name: Hashable, now: float, value: float | None) -> float | None:
        """Add a value and return the rate of change; None if the value is unknown or there is only one."""
        if value is None:
            self._trends.pop(name, None)
            return None
        trend = self._trends.get(name)
        if trend is None or (self._of_counters and value < trend.newest):
            trend = self._trends[name] = Trend(self._window_seconds)
        trend.add(now, value)
        return trend.per_second()


class StallDetector:
    """Measures since when a position has not changed although there was work to do."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Hashable, float]] = {}

    def still_since(self, name: str, place: Hashable, *, idle: bool, now: float, at_first: float) -> float:
        """Return the time since which `place` has not changed. If there is no work (`idle`), this is `now`.

        `at_first`: the time to return on the first call with this name, when no earlier place is known.
        """
        before = self._places.get(name)
        if idle:
            since = now
        elif before is None:
            since = min(at_first, now)
        else:
            since = before[1] if before[0] == place else now
        self._places[name] = (place, since)
        return since

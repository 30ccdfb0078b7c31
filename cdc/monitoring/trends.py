"""How fast figures move, and since when they have not. Pure: the time is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class Trend:
    """A figure over the last seconds."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        if self._seen and now <= self._seen[-1][0]:
            return
        self._seen.append((now, value))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._window_seconds:
            self._seen.popleft()

    @property
    def newest(self) -> float:
        return self._seen[-1][1] if self._seen else 0.0

    def per_second(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first)


class Trends:
    """Trends by name; those of figures that are no longer there go.

    `of_counters`: figures that only rise. One that has fallen was begun again (a topic was made again), so what was
    seen of it before says nothing about its speed.
    """

    def __init__(self, window_seconds: float, *, of_counters: bool = False) -> None:
        self._window_seconds = window_seconds
        self._of_counters = of_counters
        self._trends: dict[Hashable, Trend] = {}

    def rate(self, name: Hashable, now: float, value: float | None) -> float | None:
        """The figure's speed, with this value in it; None: not known, or known only once."""
        if value is None:
            self._trends.pop(name, None)
            return None
        trend = self._trends.get(name)
        if trend is None or (self._of_counters and value < trend.newest):
            trend = self._trends[name] = Trend(self._window_seconds)
        trend.add(now, value)
        return trend.per_second()


class Motion:
    """Since when has something stood still although there was something to do?"""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Hashable, float]] = {}

    def still_since(self, name: str, place: Hashable, *, idle: bool, now: float, at_first: float) -> float:
        """`at_first`: since when, where nothing is known of it yet. With nothing to do, nobody stands still."""
        before = self._places.get(name)
        if idle:
            since = now
        elif before is None:
            since = min(at_first, now)
        else:
            since = before[1] if before[0] == place else now
        self._places[name] = (place, since)
        return since

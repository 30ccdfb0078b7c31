"""When was the source's log where? Pure: sightings in, the age of an LSN out.

A sighting says: at this time the log had not passed this LSN. Whoever has everything before an LSN has, therefore,
every commit up to the time of the latest sighting at or below it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right

_MOST = 6000


class LogClock:
    """The sightings that say most, oldest first; the older half is thinned out when there are too many.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._lsns: list[int] = []

    def see(self, lsn: int, time: float) -> None:
        """They may come in any order."""
        with self._lock:
            self._see(lsn, time)

    def _see(self, lsn: int, time: float) -> None:
        at = bisect_right(self._times, time)
        if at < len(self._lsns) and self._lsns[at] <= lsn:
            return  # later, the log was not even that far
        begin = bisect_left(self._lsns, lsn, 0, at)
        self._times[begin:at] = [time]
        self._lsns[begin:at] = [lsn]
        if len(self._times) > _MOST:
            half = _MOST // 2
            self._times = self._times[:half:2] + self._times[half:]
            self._lsns = self._lsns[:half:2] + self._lsns[half:]

    def until(self, lsn: int) -> float | None:
        """All commits up to this time lie before `lsn`; None where that is before every sighting."""
        with self._lock:
            at = bisect_right(self._lsns, lsn)
            return self._times[at - 1] if at else None

    @property
    def newest_lsn(self) -> int | None:
        return self._lsns[-1] if self._lsns else None

    def bytes_per_second(self, now: float, window_seconds: float) -> float | None:
        """How fast the log has grown of late."""
        with self._lock:
            return self._rate(now, window_seconds)

    def _rate(self, now: float, window_seconds: float) -> float | None:
        at = bisect_left(self._times, now - window_seconds)
        if len(self._times) - at < 2:
            at = max(0, len(self._times) - 2)
        if len(self._times) - at < 2:
            return None
        seconds = now - self._times[at]
        return (self._lsns[-1] - self._lsns[at]) / seconds if seconds > 0 else None

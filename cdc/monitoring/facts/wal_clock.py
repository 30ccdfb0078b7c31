"""Maps LSNs to times, from observations of the source's WAL position. No I/O.

An observation says: at this time, the end of the WAL was not beyond this LSN. A consumer that has everything before an
LSN therefore has every commit up to the time of the latest observation at or below that LSN.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right

_MOST = 6000


class WalClock:
    """Keeps the most precise observations, oldest first. It is thread-safe.

    When there are too many, it drops every second observation of the older half.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._lsns: list[int] = []

    def see(self, lsn: int, time: float) -> None:
        """Add an observation. Observations may arrive in any order."""
        with self._lock:
            self._see(lsn, time)

    def _see(self, lsn: int, time: float) -> None:
        at = bisect_right(self._times, time)
        if at < len(self._lsns) and self._lsns[at] <= lsn:
            return  # a later observation has a lower LSN, and is more precise
        begin = bisect_left(self._lsns, lsn, 0, at)
        self._times[begin:at] = [time]
        self._lsns[begin:at] = [lsn]
        if len(self._times) > _MOST:
            half = _MOST // 2
            self._times = self._times[:half:2] + self._times[half:]
            self._lsns = self._lsns[:half:2] + self._lsns[half:]

    def until(self, lsn: int) -> float | None:
        """Return the time up to which every commit lies before `lsn`; None if `lsn` is below every observation."""
        with self._lock:
            at = bisect_right(self._lsns, lsn)
            return self._times[at - 1] if at else None

    @property
    def newest_lsn(self) -> int | None:
        """The highest LSN observed."""
        return self._lsns[-1] if self._lsns else None

    def bytes_per_second(self, now: float, window_seconds: float) -> float | None:
        """Return how fast the WAL has grown over the last `window_seconds`; None with fewer than two observations."""
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

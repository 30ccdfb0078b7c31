"""Maps topic offsets to the newest progress record that they cover, and so to an LSN. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cdc.lsn import Version
from cdc.positions.progress import Progress

Offsets = Mapping[str, Sequence[int]]

_MOST_POINTS = 4096


@dataclass(frozen=True, slots=True)
class Point:
    """A progress record: a reader that has applied the topics up to `end_offsets` has all changes up to `lsn`.

    `version` is the version of the last of these changes.
    """

    lsn: int
    version: Version
    end_offsets: Mapping[str, Sequence[int]]
    commit_time_us: int
    written_ms: int
    #: The time when the broker appended the progress record; 0 if unknown. The broker appended every record that the
    #: point does not cover later, because capture's transactions do not overlap.
    broker_ms: int = 0

    @classmethod
    def of(cls, progress: Progress, broker_ms: int = 0) -> Point | None:
        """Return the point of a progress record.

        Returns None during the initial snapshot, because the record does not cover its rows yet.
        """
        if progress.state != "streaming":
            return None
        return cls(
            progress.confirm_lsn,
            progress.version,
            progress.end_offsets,
            progress.commit_time_us,
            progress.written_ms,
            broker_ms,
        )

    @property
    def place(self) -> tuple[Version, int]:
        """Return the sort key. Versions always increase; LSNs can decrease when another server replaces the source."""
        return self.version, self.lsn

    def covered_by(self, offsets: Offsets, left_out: Collection[str] = ()) -> bool:
        """Return whether these offsets reach the point. `left_out`: topics that their reader does not read."""
        return all(topic in left_out or _reaches(offsets.get(topic), ends) for topic, ends in self.end_offsets.items())


class Points:
    """A bounded list of points, oldest first.

    Above the limit, every second point of the older half is discarded. The positions of a store that lags far behind
    become coarser, but stay correct.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []

    def add(self, point: Point) -> None:
        """Append a point. Ignores a point that is older than the last one."""
        last = self._points[-1] if self._points else None
        if last is not None and point.place < last.place:
            return  # the reader reads records again after a lost connection
        if last is not None and not _goes_on(last.end_offsets, point.end_offsets):
            self._points.clear()  # a table was removed or its topic re-created: the older points are no longer valid
        self._points.append(point)
        if len(self._points) > _MOST_POINTS:
            self._points = self._points[: -_MOST_POINTS // 2 : 2] + self._points[-_MOST_POINTS // 2 :]

    @property
    def newest(self) -> Point | None:
        """The last point, or None."""
        return self._points[-1] if self._points else None

    def covered(self, offsets: Offsets, left_out: Collection[str] = ()) -> Point | None:
        """Return the newest point that these offsets reach, by binary search, since end offsets never decrease."""
        reached = bisect_right(self._points, False, key=lambda point: not point.covered_by(offsets, left_out))
        return self._points[reached - 1] if reached else None


def _goes_on(before: Offsets, now: Offsets) -> bool:
    return before.keys() <= now.keys() and all(_reaches(now[topic], ends) for topic, ends in before.items())


def _reaches(applied: Sequence[int] | None, ends: Sequence[int]) -> bool:
    if applied is None:
        return not any(ends)
    return len(applied) >= len(ends) and all(offset >= end for offset, end in zip(applied, ends, strict=False))

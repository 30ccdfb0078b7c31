"""Which LSN do these offsets stand for? Pure: progress records in, the greatest one that is covered out."""

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
    """Whoever has applied the topics up to `end_offsets` has everything up to `lsn` and `version`."""

    lsn: int
    version: Version
    end_offsets: Mapping[str, Sequence[int]]
    commit_time_us: int
    written_ms: int
    #: When the broker appended the progress record; 0 where that is not known. Records that the point does not cover
    #: were appended later, since capture's transactions follow each other.
    broker_ms: int = 0

    @classmethod
    def of(cls, progress: Progress, broker_ms: int = 0) -> Point | None:
        """None while a first copy is under way: its rows are not in the record yet."""
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
        """Points in order. The version rises for ever; LSNs may fall, where a server took the place of another."""
        return self.version, self.lsn

    def covered_by(self, offsets: Offsets, left_out: Collection[str] = ()) -> bool:
        """`left_out`: topics that the reader of these offsets does not get."""
        return all(topic in left_out or _reaches(offsets.get(topic), ends) for topic, ends in self.end_offsets.items())


class Points:
    """Oldest first. Where a store is far behind and there are too many, every second one goes: coarser, still true."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def add(self, point: Point) -> None:
        last = self._points[-1] if self._points else None
        if last is not None and point.place < last.place:
            return  # read again after the connection was lost
        if last is not None and not _goes_on(last.end_offsets, point.end_offsets):
            self._points.clear()  # a table was removed, or its topic made anew: the older ones say nothing any more
        self._points.append(point)
        if len(self._points) > _MOST_POINTS:
            self._points = self._points[: -_MOST_POINTS // 2 : 2] + self._points[-_MOST_POINTS // 2 :]

    @property
    def newest(self) -> Point | None:
        return self._points[-1] if self._points else None

    def covered(self, offsets: Offsets, left_out: Collection[str] = ()) -> Point | None:
        """The newest one that these offsets reach. End offsets only ever rise, so that halving finds it."""
        reached = bisect_right(self._points, False, key=lambda point: not point.covered_by(offsets, left_out))
        return self._points[reached - 1] if reached else None


def _goes_on(before: Offsets, now: Offsets) -> bool:
    return before.keys() <= now.keys() and all(_reaches(now[topic], ends) for topic, ends in before.items())


def _reaches(applied: Sequence[int] | None, ends: Sequence[int]) -> bool:
    if applied is None:
        return not any(ends)
    return len(applied) >= len(ends) and all(offset >= end for offset, end in zip(applied, ends, strict=False))

"""Maps a store's offsets to an LSN of the source, by the same rule that the sync uses.

A store may be further than its recorded position. When only heartbeats advance the LSN, there are no records to apply,
and the sync has to record the new LSN. A stopped or paused sync does not record it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from cdc.positions.offset_index import Offsets, Point, Points
from cdc.positions.progress import Progress


class PublishedOffsets:
    """The published offsets of recent progress records. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points = Points()

    def add(self, records: Iterable[Progress]) -> None:
        """Add progress records. They are sorted first, because two topics hold them and the reader mixes the two."""
        found = [point for point in map(Point.of, records) if point is not None]
        with self._lock:
            for point in sorted(found, key=lambda point: point.place):
                self._points.add(point)

    def covered(self, offsets: Offsets, left_out: Collection[str]) -> Point | None:
        """Return the newest progress record whose end offsets these offsets reach.

        `left_out`: topics that the store does not read.
        """
        with self._lock:
            return self._points.covered(offsets, left_out)

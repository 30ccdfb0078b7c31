"""Which moment of the source do a store's offsets stand for? The sync's own rule, for whoever looks on.

A store may have more than its position says: with nothing to apply, an LSN that only heartbeats have moved is written
down by its sync, and a sync that is stopped or paused writes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from cdc.positions.offset_index import Offsets, Point, Points
from cdc.positions.progress import Progress


class Published:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points = Points()

    def add(self, records: Iterable[Progress]) -> None:
        """They are put in order: two topics have them, and the reader does not know which comes first."""
        found = [point for point in map(Point.of, records) if point is not None]
        with self._lock:
            for point in sorted(found, key=lambda point: point.place):
                self._points.add(point)

    def covered(self, offsets: Offsets, left_out: Collection[str]) -> Point | None:
        """The newest record whose ends these offsets reach; `left_out`: topics that are not the store's business."""
        with self._lock:
            return self._points.covered(offsets, left_out)

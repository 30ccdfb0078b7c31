"""Decides whether compaction may have removed a delete before a store read it. Only the broker's clock counts.

Kafka keeps a tombstone for `delete.retention.ms` after the append, by the broker's clock. A store that has applied
every record appended before the time C misses nothing as long as it reads the rest before C + `delete.retention.ms`.
C is `Position.caught_up_broker_ms`. Two facts prove a value of C, and neither depends on this host's clock:

- The store covers a progress record. Then C is the time at which the broker appended that record.
- The store has read the topics to their end offsets, and those were read after the broker's time. Then C is that time.

C rises only after the broker has returned its present time, and only if that is within the retention of the old C.
This host's clock decides only how often the driver polls the broker. If that clock stops, C gets older, never newer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cdc.errors import RefusedError, TransientError
from cdc.positions.offset_index import Offsets, Point

_ASK_SECONDS: Final = 60.0
# Brokers' clocks differ a little, and the records of an open transaction are older than its end.
_MARGIN_MS: Final = 15 * 60_000


def margin_ms(retention_ms: int) -> int:
    """Return the safety margin that is subtracted from the retention.

    A time that is further in the future than this margin proves nothing.
    """
    return min(_MARGIN_MS, retention_ms // 10)


def is_too_old(caught_up_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Return whether the store may have missed deletes. Both times are by the broker's clock.

    A caught-up time in the future proves nothing: the broker's clock was wrong when it was recorded.
    """
    margin = margin_ms(retention_ms)
    return now_ms - caught_up_ms > retention_ms - margin or caught_up_ms - now_ms > margin


def needs_bootstrap(
    store: str, caught_up_ms: int, now_ms: int, retention_ms: int, topic: str = "Kafka"
) -> RefusedError:
    """Return the error for a store for which `is_too_old` is true."""
    if caught_up_ms > now_ms:
        since = "The time at which it was last caught up lies in the future"
    elif caught_up_ms:
        since = f"It was last caught up {(now_ms - caught_up_ms) / 3_600_000:.2f} hours ago"
    else:
        since = "Nothing proves when it was last caught up"
    return RefusedError(
        f"Store {store} may have missed deletes. {since} (by the broker's clock), and {topic} keeps deletes for"
        f" {retention_ms / 3_600_000:g} hours. It needs a bootstrap.",
        remedy=f"Build the store again from the topics: tailrace bootstrap {store}",
    )


def reaches(applied: Offsets, ends: Mapping[str, Sequence[int]]) -> bool:
    """Return whether every record before the end offsets `ends` is applied."""
    return all(
        topic in applied and all(offset >= end for offset, end in zip(applied[topic], partitions, strict=True))
        for topic, partitions in ends.items()
    )


class DeleteRetention:
    """Maintains `caught_up_ms` of one running sync, and refuses if Kafka may have removed an unread delete.

    `now_ms` reads the broker's time. `ends` reads the end offsets of the store's topics.
    """

    def __init__(
        self,
        store: str,
        *,
        caught_up_ms: int,
        retention_ms: int,
        now_ms: Callable[[], int],
        ends: Callable[[], Mapping[str, Sequence[int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.caught_up_ms = caught_up_ms
        self._store = store
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._ends = ends
        self._clock = clock
        self._ask_seconds = min(_ASK_SECONDS, retention_ms / 20_000)
        self._asked_at = clock()

    def poll(self, applied: Offsets, point: Point | None) -> bool:
        """Poll the broker if the interval has passed. Returns whether `caught_up_ms` has changed.

        `applied` are the offsets that the store has applied, `point` the newest point that they cover.
        """
        if self._clock() - self._asked_at < self._ask_seconds:
            return False
        self._asked_at = self._clock()
        try:
            now_ms = self._now_ms()
            at_end = reaches(applied, self._ends())  # after the time: later appends are later than `now_ms`
        except TransientError:
            return False  # the broker does not answer: `caught_up_ms` stays as it is
        if now_ms - self.caught_up_ms > self._retention_ms - margin_ms(self._retention_ms):
            raise needs_bootstrap(self._store, self.caught_up_ms, now_ms, self._retention_ms)
        reached = now_ms if at_end else point.broker_ms if point is not None else 0
        before, self.caught_up_ms = self.caught_up_ms, min(max(self.caught_up_ms, reached), now_ms)
        return self.caught_up_ms != before

"""Could Kafka have forgotten a delete before a store read it? Decided by the broker's clock alone.

Kafka keeps a tombstone for `delete.retention.ms` after it was appended, by the broker's clock. A store that has applied
every record appended before the time C misses nothing as long as it reads the rest before C + `delete.retention.ms`.
C is `Position.caught_up_broker_ms`. Two facts prove it, and neither needs a clock of ours:

- the store covers a progress record: C is when the broker appended that record;
- the store has read the topics to the ends that the broker named after it was asked for the time: C is that time.

C rises only after the broker has been asked for the present time and that is still inside the retention of the old C.
Our own clock decides only how often the broker is asked. A clock that stands still makes C older, never younger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cdc.errors import RefusedError, TransientError
from cdc.positions.offset_index import Offsets, Point

_ASK_SECONDS: Final = 60.0
# Clocks of brokers differ a little, and the records of an open transaction are older than its end.
_MARGIN_MS: Final = 15 * 60_000


def margin_ms(retention_ms: int) -> int:
    """What is taken off the retention to be safe; a time that is further in the future than this proves nothing."""
    return min(_MARGIN_MS, retention_ms // 10)


def is_too_old(caught_up_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Both times are the broker's. A time in the future is no evidence: the broker's clock was wrong then."""
    margin = margin_ms(retention_ms)
    return now_ms - caught_up_ms > retention_ms - margin or caught_up_ms - now_ms > margin


def needs_bootstrap(
    store: str, caught_up_ms: int, now_ms: int, retention_ms: int, topic: str = "Kafka"
) -> RefusedError:
    """The error for a store that `is_too_old`."""
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
    """Whether everything before these ends is applied."""
    return all(
        topic in applied and all(offset >= end for offset, end in zip(applied[topic], partitions, strict=True))
        for topic, partitions in ends.items()
    )


class DeleteRetention:
    """Keeps `caught_up_ms` of one running sync, and refuses when a delete may have been forgotten.

    `now_ms` asks the broker for its time, `ends` for the ends of the store's topics.
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

    def look(self, applied: Offsets, point: Point | None) -> bool:
        """Ask again if it is time. `point`: the newest that `applied` covers. True: `caught_up_ms` has changed."""
        if self._clock() - self._asked_at < self._ask_seconds:
            return False
        self._asked_at = self._clock()
        try:
            now_ms = self._now_ms()
            at_end = reaches(applied, self._ends())  # in this order: what is appended later is later than `now_ms`
        except TransientError:
            return False  # the broker is away: the evidence stays as old as it is
        if now_ms - self.caught_up_ms > self._retention_ms - margin_ms(self._retention_ms):
            raise needs_bootstrap(self._store, self.caught_up_ms, now_ms, self._retention_ms)
        reached = now_ms if at_end else point.broker_ms if point is not None else 0
        before, self.caught_up_ms = self.caught_up_ms, min(max(self.caught_up_ms, reached), now_ms)
        return self.caught_up_ms != before

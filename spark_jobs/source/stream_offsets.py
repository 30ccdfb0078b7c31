"""The offsets of a stream, as Spark keeps them in the checkpoint, and what was lost since. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdc.errors import RefusedError
from cdc.units import in_time
from spark_jobs.source.table_topic import TableTopicFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The offsets before which everything has been read, by partition.

    `topic_id`: offsets of a topic that was deleted and made again mean nothing. `caught_up_ms`: the stream had read
    every record that was published before this time of the driver's clock.
    """

    topic_id: str
    offsets: tuple[int, ...]
    caught_up_ms: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return the offset of the checkpoint's JSON."""
        offsets: dict[str, int] = value["offsets"]
        return cls(
            topic_id=value["topic_id"],
            offsets=tuple(offsets[str(number)] for number in range(len(offsets))),
            caught_up_ms=value["caught_up_ms"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the checkpoint. Equal offsets have equal texts."""
        offsets = {str(number): offset for number, offset in enumerate(self.offsets)}
        return {"topic_id": self.topic_id, "offsets": offsets, "caught_up_ms": self.caught_up_ms}

    def next(self, ends: Sequence[int], now_ms: int, most: int, quiet_ms: int) -> StreamOffset:
        """Return the offset after the next batch. `ends`: of everything that is published. `most`: 0 for no limit.

        An offset that differs from this one makes Spark run a batch, so `caught_up_ms` moves only with a change, or if
        it is older than `quiet_ms`.
        """
        reached = [max(each) for each in zip(ends, self.offsets, strict=True)]
        waiting = [end - offset for end, offset in zip(reached, self.offsets, strict=True)]
        if most and sum(waiting) > most:
            taken = _shares(waiting, most)
            return replace(self, offsets=tuple(map(sum, zip(self.offsets, taken, strict=True))))
        if not any(waiting) and now_ms - self.caught_up_ms < quiet_ms:
            return self
        return replace(self, offsets=tuple(reached), caught_up_ms=max(now_ms, self.caught_up_ms))


def refuse_lost(start: StreamOffset, facts: TableTopicFacts, table: str, now_ms: int) -> None:
    """Raise if changes after `start` may be gone from the topic."""
    reason = _what_is_lost(start, facts, now_ms)
    if reason is not None:
        raise RefusedError(
            f"Changes of {table} that the stream has not read are lost: {reason}.",
            remedy="Use a new checkpoint and an empty target. It then reads the topic from its beginning.",
        )


def _what_is_lost(start: StreamOffset, facts: TableTopicFacts, now_ms: int) -> str | None:
    if start.topic_id != facts.topic_id:
        return "the topic was deleted and made again"
    if len(start.offsets) != len(facts.starts):
        return f"the topic has {len(facts.starts)} partitions instead of {len(start.offsets)}"
    for partition, (offset, low, end) in enumerate(zip(start.offsets, facts.starts, facts.ends, strict=True)):
        if offset < low:
            return f"the records of partition {partition} from offset {offset} to {low - 1} were deleted"
        if offset > end:
            return f"partition {partition} ends at offset {end}, before offset {offset}, which was read"
    away_ms = now_ms - start.caught_up_ms
    if away_ms >= facts.delete_retention_ms:
        return (
            f"the stream was behind for {in_time(away_ms / 1000)}, and the topic keeps deletes for"
            f" {in_time(facts.delete_retention_ms / 1000)}"
        )
    return None


def _shares(waiting: Sequence[int], most: int) -> list[int]:
    """Divide `most` in proportion to what waits. Each partition that has records gets one at least."""
    total = sum(waiting)
    return [min(each, max(1, each * most // total)) if each else 0 for each in waiting]

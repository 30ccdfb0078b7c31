"""The offsets of a stream: limits, idleness, and what was lost since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.errors import RefusedError
from spark_jobs.source.stream_offsets import StreamOffset, refuse_lost
from spark_jobs.source.table_topic import TableTopicFacts

START = StreamOffset(topic_id="a", offsets=(10, 20), caught_up_ms=1_000)
FACTS = TableTopicFacts(
    topic_id="a", starts=[0, 0], ends=[50, 60], cleanup_policy="compact", delete_retention_ms=100_000
)


def test_an_offset_survives_the_checkpoint() -> None:
    """What is written as JSON reads as the same offset."""
    assert StreamOffset.from_json(START.to_json()) == START


def test_without_a_limit_a_batch_goes_to_the_ends() -> None:
    """It has then caught up. An end that is behind what was read changes nothing."""
    assert START.next([15, 12], 5_000, 0, 10_000) == replace(START, offsets=(15, 20), caught_up_ms=5_000)


def test_a_limit_divides_a_batch() -> None:
    """Each partition advances by its share; only when nothing is left has the stream caught up."""
    first = START.next([110, 120], 5_000, 50, 10_000)
    assert first == replace(START, offsets=(35, 45))
    assert first.next([60, 50], 6_000, 50, 10_000) == replace(START, offsets=(60, 50), caught_up_ms=6_000)
    assert START.next([11, 100_020], 5_000, 10, 10_000).offsets == (11, 29)


def test_an_idle_stream_rarely_moves() -> None:
    """Spark runs a batch for every new offset: an idle stream makes one only to remember that it was there."""
    assert START.next([10, 20], 5_000, 0, 10_000) is START
    assert START.next([10, 20], 11_000, 0, 10_000) == replace(START, caught_up_ms=11_000)


@pytest.mark.parametrize(
    ("facts", "now_ms", "reason"),
    [
        (replace(FACTS, topic_id="b"), 2_000, "deleted and made again"),
        (replace(FACTS, starts=[0]), 2_000, "1 partitions instead of 2"),
        (replace(FACTS, starts=[11, 0]), 2_000, "partition 0 from offset 10 to 10 were deleted"),
        (replace(FACTS, ends=[50, 19]), 2_000, "partition 1 ends at offset 19, before offset 20"),
        (FACTS, 101_000, "behind for 100 s, and the topic keeps deletes for 100 s"),
    ],
)
def test_lost_changes_are_an_error(facts: TableTopicFacts, now_ms: int, reason: str) -> None:
    """Changes that are gone are never skipped in silence."""
    refuse_lost(START, FACTS, "public.t", 100_999)
    with pytest.raises(RefusedError, match=reason):
        refuse_lost(START, facts, "public.t", now_ms)

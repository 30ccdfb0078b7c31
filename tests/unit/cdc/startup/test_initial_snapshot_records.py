"""How capture reads the records of an initial snapshot."""

from __future__ import annotations

from cdc.startup.initial_snapshot import _furthest


def test_topics_must_reach_as_far_as_any_chunk_says() -> None:
    """Each topic must reach the largest offset of any chunk; a topic with added partitions is refused later."""
    ends = [{"t": [5, 0]}, {"t": [3, 9], "u": [1]}, {}, {"u": [0, 4]}]
    assert _furthest(ends) == {"t": [5, 9], "u": [1, 4]}

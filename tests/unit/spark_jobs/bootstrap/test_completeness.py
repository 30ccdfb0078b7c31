"""When a rebuilt store counts as complete."""

from __future__ import annotations

from cdc.kafka.topics import Topic
from cdc.positions.progress import Progress
from cdc.tables.recorded_state import TableStates
from spark_jobs.bootstrap.completeness import Completeness, reasons_after, reasons_before, why_too_slow
from spark_jobs.sync.start_position import TopicFacts


def _progress(state: str = "streaming", topic_id: str = "id") -> Progress:
    return Progress(
        state=state,
        position=8,
        seq=0,
        base=0,
        confirm_lsn=8,
        system_identifier="1",
        timeline=1,
        publication="1/1",
        publication_tables={},
        topic_ids={"t": topic_id},
        end_offsets={"t": [3, 4]},
    )


def _facts(starts: list[int], partitions: int = 2) -> dict[str, TopicFacts]:
    return {"t": TopicFacts(topic=Topic("id", partitions), starts=starts, ends=[3, 4], delete_retention_ms=1000)}


def test_a_whole_topic_gives_no_reason() -> None:
    """A compacted topic from offset 0 with the recorded id and partitions and a complete snapshot is complete."""
    assert reasons_before(_progress(), _facts([0, 0]), {"t": "compact"}) == []


def test_each_lack_is_named() -> None:
    """Each reason for which a topic is no whole copy of its table is named."""
    reasons = reasons_before(_progress("copying"), _facts([0, 0]), {"t": "compact"})
    assert reasons == ["the initial snapshot is not complete"]
    assert "deleted from the beginning of t" in reasons_before(_progress(), _facts([0, 1]), {"t": "compact"})[0]
    assert "cleanup.policy=delete" in reasons_before(_progress(), _facts([0, 0]), {"t": "delete"})[0]
    assert "made again" in reasons_before(_progress(topic_id="old"), _facts([0, 0]), {"t": "compact"})[0]
    assert "partitions" in reasons_before(_progress(), _facts([0, 0, 0], 3), {"t": "compact"})[0]


def test_a_slow_build_is_never_complete() -> None:
    """A build longer than delete retention is incomplete, since deletes may have been removed unread."""
    assert why_too_slow(999, 1000) is None
    assert "set back" in (why_too_slow(-1, 1000) or "")
    reason = why_too_slow(1000, 1000)
    assert reason is not None
    verdict = Completeness(lsn=8, rows=1, parked=0, reasons=reasons_after(None, too_slow=reason, expected={}, found={}))
    assert not verdict.complete
    assert "not proven complete" in str(verdict)


def test_pending_tables_and_wrong_counts_are_reasons() -> None:
    """Pending tables, wrong counts and parked rows are reasons for incompleteness."""
    states = TableStates().with_pending("t", 16, "column x was renamed to y")
    reasons = reasons_after(
        states, too_slow=None, expected={"t": range(9, 11), "u": range(5, 6)}, found={"t": 9, "u": 4}
    )
    assert reasons == ["t is incomplete since 0/10: column x was renamed to y", "u has 4 rows instead of 5"]


def test_parked_rows_are_an_exception_and_said() -> None:
    """A build with parked rows reports "complete except N"."""
    verdict = Completeness(lsn=8, rows=1000, parked=2)
    assert str(verdict) == "complete as of 0/8, 1,000 rows except 2 parked"
    assert not verdict.complete
    assert Completeness(lsn=8, rows=1000, parked=0).complete

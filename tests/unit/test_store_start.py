"""Where a store's reading begins, and when it must not."""

from __future__ import annotations

import msgspec
import pytest

from cdc.errors import RefusedError
from cdc.topics import Topic
from sinks.contract import Position, TopicPosition, caught_up_at
from spark_jobs.stores.start import TopicFacts, starting_position

HOUR_MS = 3_600_000


def _facts(*, ends: list[int], starts: list[int] | None = None, topic_id: str = "id") -> dict[str, TopicFacts]:
    facts = TopicFacts(
        topic=Topic(topic_id, len(ends)), starts=starts or [0] * len(ends), ends=ends, delete_retention_ms=HOUR_MS
    )
    return {"t": facts}


def _position(*offsets: int, caught_up_ms: int = 0) -> Position:
    return caught_up_at(Position(owner="me", topics={"t": TopicPosition("id", offsets)}), caught_up_ms)


def test_a_new_store_begins_at_the_beginning() -> None:
    """And counts as caught up from now on: an empty store has no ghosts."""
    found = starting_position("s", Position(owner="me"), _facts(ends=[5, 5]), now_ms=7)
    assert found.topics == {"t": TopicPosition("id", (0, 0))}
    assert found.caught_up_broker_ms == 7


def test_a_known_position_is_gone_on_from() -> None:
    """Topics that are gone are left out."""
    position = _position(3, 4, caught_up_ms=10)
    position.topics["gone"] = TopicPosition("x", (1,))
    found = starting_position("s", position, _facts(ends=[5, 5]), now_ms=11)
    assert found.topics == {"t": TopicPosition("id", (3, 4))}
    assert found.caught_up_broker_ms == 10


@pytest.mark.parametrize(
    ("position", "facts", "words"),
    [
        (_position(3), _facts(ends=[5], topic_id="other"), "made again"),
        (_position(3), _facts(ends=[5, 5]), "2 partitions"),
        (_position(6), _facts(ends=[5]), "the broker has lost records"),
        (_position(3), _facts(ends=[9], starts=[4]), "deleted from t"),
        (_position(3, caught_up_ms=1), _facts(ends=[5]), "needs a bootstrap"),
        (_position(3, caught_up_ms=9 * HOUR_MS), _facts(ends=[5]), "lies in the future"),
        (msgspec.structs.replace(_position(3), caught_up_ms=2 * HOUR_MS), _facts(ends=[5]), "Nothing proves"),
    ],
)
def test_what_could_leave_ghosts_or_holes_is_refused(
    position: Position, facts: dict[str, TopicFacts], words: str
) -> None:
    """With the reason, and with the command that mends it."""
    with pytest.raises(RefusedError, match=words) as refused:
        starting_position("search", position, facts, now_ms=2 * HOUR_MS)
    assert "tailrace bootstrap search" in str(refused.value)


def test_who_has_read_everything_is_never_too_old() -> None:
    """Nothing was written while it was away, so nothing was missed: it counts as caught up now."""
    found = starting_position("s", _position(5, caught_up_ms=1), _facts(ends=[5]), now_ms=9 * HOUR_MS)
    assert found.caught_up_broker_ms == 9 * HOUR_MS


def test_a_topic_that_a_recovery_has_made_anew_is_read_from_its_beginning() -> None:
    """It holds a whole copy; one that anybody else has made anew is refused as ever."""
    position, facts = _position(3, 3), _facts(ends=[5, 5], topic_id="new")
    name = next(iter(facts))
    found = starting_position("s", position, facts, now_ms=7, remade={name: "new"})
    assert found.topics[name] == TopicPosition("new", (0, 0))
    with pytest.raises(RefusedError):
        starting_position("s", position, facts, now_ms=7, remade={name: "another"})

"""The offsets at which a store starts to read, and when it must not start."""

from __future__ import annotations

import msgspec
import pytest

from cdc.errors import RefusedError
from cdc.kafka.topics import Topic
from cdc.lsn import Version
from cdc.positions.progress import Progress
from cdc.stores.contract import Position, TopicPosition, caught_up_at
from spark_jobs.sync.start_position import TopicFacts, of_this_pipeline, starting_position

HOUR_MS = 3_600_000


def _progress(remade: dict[str, str] | None = None, pipeline_id: str = "mine") -> Progress:
    return Progress(
        state="streaming",
        position=80,
        seq=1,
        base=0,
        confirm_lsn=80,
        pipeline_id=pipeline_id,
        system_identifier="",
        timeline=1,
        publication="",
        publication_tables={},
        topic_ids={},
        end_offsets={},
        remade=remade or {},
    )


def _facts(*, ends: list[int], starts: list[int] | None = None, topic_id: str = "id") -> dict[str, TopicFacts]:
    facts = TopicFacts(
        topic=Topic(topic_id, len(ends)), starts=starts or [0] * len(ends), ends=ends, delete_retention_ms=HOUR_MS
    )
    return {"t": facts}


def _position(*offsets: int, caught_up_ms: int = 0, pipeline_id: str = "mine", position: int = 80) -> Position:
    found = Position(
        owner="me",
        pipeline_id=pipeline_id,
        topics={"t": TopicPosition("id", offsets)},
        version=Version(position, 0),
    )
    return caught_up_at(found, caught_up_ms)


def test_a_new_store_begins_at_the_beginning() -> None:
    """A new store starts at offset 0 and counts as caught up."""
    found = starting_position("s", Position(owner="me"), _facts(ends=[5, 5]), _progress(), now_ms=7)
    assert found.topics == {"t": TopicPosition("id", (0, 0))}
    assert found.caught_up_broker_ms == 7


def test_a_known_position_is_continued() -> None:
    """Reading continues from the position, without topics that no longer exist."""
    position = _position(3, 4, caught_up_ms=10)
    position.topics["gone"] = TopicPosition("x", (1,))
    found = starting_position("s", position, _facts(ends=[5, 5]), _progress(), now_ms=11)
    assert found.topics == {"t": TopicPosition("id", (3, 4))}
    assert found.caught_up_broker_ms == 10


@pytest.mark.parametrize(
    ("position", "facts", "words"),
    [
        (_position(3), _facts(ends=[5], topic_id="other"), "created again"),
        (_position(3), _facts(ends=[5, 5]), "2 partitions"),
        (_position(6), _facts(ends=[5]), "the broker has lost records"),
        (_position(3), _facts(ends=[9], starts=[4]), "deleted from t"),
        (_position(3, caught_up_ms=1), _facts(ends=[5]), "needs a bootstrap"),
        (_position(3, caught_up_ms=9 * HOUR_MS), _facts(ends=[5]), "lies in the future"),
        (msgspec.structs.replace(_position(3), caught_up_ms=2 * HOUR_MS), _facts(ends=[5]), "Nothing proves"),
    ],
)
def test_a_position_that_could_miss_records_is_refused(
    position: Position, facts: dict[str, TopicFacts], words: str
) -> None:
    """A position that could miss changes or deletes is refused with the reason and the bootstrap command."""
    with pytest.raises(RefusedError, match=words) as refused:
        starting_position("search", position, facts, _progress(), now_ms=2 * HOUR_MS)
    assert "tailrace bootstrap search" in str(refused.value)


def test_a_store_that_has_read_everything_is_never_too_old() -> None:
    """A store at the end of every topic is caught up now, whatever its time."""
    found = starting_position("s", _position(5, caught_up_ms=1), _facts(ends=[5]), _progress(), now_ms=9 * HOUR_MS)
    assert found.caught_up_broker_ms == 9 * HOUR_MS


def test_a_topic_that_a_recovery_has_created_again_is_read_from_its_beginning() -> None:
    """A topic created again by a recovery is read from offset 0, and any other is refused."""
    position, facts = _position(3, 3), _facts(ends=[5, 5], topic_id="new")
    name = next(iter(facts))
    found = starting_position("s", position, facts, _progress({name: "new"}), now_ms=7)
    assert found.topics[name] == TopicPosition("new", (0, 0))
    with pytest.raises(RefusedError):
        starting_position("s", position, facts, _progress({name: "another"}), now_ms=7)


@pytest.mark.parametrize("theirs", ["theirs", ""])
def test_a_store_of_another_pipeline_is_refused(theirs: str) -> None:
    """A store of another pipeline is refused, also if a recovery created the topics again."""
    found, facts = _position(3, pipeline_id=theirs), _facts(ends=[5], topic_id="new")
    for remade in ({}, {"t": "new"}):
        with pytest.raises(RefusedError, match="another pipeline") as refused:
            starting_position("search", found, facts, _progress(remade), now_ms=7)
        assert "tailrace bootstrap search" in str(refused.value)
    with pytest.raises(RefusedError, match="another pipeline"):
        starting_position("search", _position(3), _facts(ends=[5]), _progress(pipeline_id="new"), now_ms=7)


def test_a_store_of_an_older_release_is_gone_on_with_if_it_has_read_these_topics() -> None:
    """A store of release 0.1.0, which wrote no pipeline id, is accepted if it has read one of these topics and is not
    ahead.

    An empty store belongs to the first pipeline that takes it.
    """
    facts = _facts(ends=[5])
    found = starting_position("s", _position(3, pipeline_id=""), facts, _progress(), now_ms=7)
    assert (found.pipeline_id, found.topics["t"].next_offsets) == ("mine", (3,))
    assert starting_position("s", Position(owner="me"), facts, _progress(), now_ms=7).pipeline_id == "mine"
    assert of_this_pipeline(_position(3, pipeline_id="", position=88), facts, _progress()) is None
    unnamed = _progress(pipeline_id="")
    assert of_this_pipeline(_position(3, pipeline_id=""), facts, unnamed) == _position(3, pipeline_id="")
    assert of_this_pipeline(_position(3), facts, unnamed) is None, "an older capture refuses what a newer one wrote"

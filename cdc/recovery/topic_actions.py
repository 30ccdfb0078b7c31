"""Decides for each topic what to do, so that a snapshot of its table then makes the topic complete. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from cdc.kafka.topics import Topic
from cdc.positions.progress import Progress


class TopicAction(Enum):
    KEEP = "keep"
    MAKE = "make"
    #: Records are missing at its start or end, so its offsets are not valid, or its number of partitions has changed.
    REMAKE = "remake"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTopic:
    topic: Topic
    starts: list[int]
    ends: list[int]
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicActions:
    """The decisions. `cares`: by topic of a captured table. `policies`: kept topics whose cleanup policy is wrong.

    `left`: undamaged topics of tables that are no longer captured.
    """

    found: Mapping[str, DamagedTopic]
    cares: Mapping[str, TopicAction]
    policies: tuple[str, ...]
    left: tuple[str, ...]

    def named(self, care: TopicAction) -> list[str]:
        return sorted(name for name, each in self.cares.items() if each is care)


def action_for(
    progress: Progress | None, wanted: Collection[str], found: Mapping[str, DamagedTopic], partitions: int
) -> TopicActions:
    """Return the decisions. A topic that another process created again is kept if its partitions are right."""
    recorded = progress.end_offsets if progress is not None else {}
    ids = progress.topic_ids if progress is not None else {}
    cares = {name: _care(found.get(name), recorded.get(name), ids.get(name), partitions) for name in sorted(wanted)}
    kept = [name for name, care in cares.items() if care is TopicAction.KEEP]
    left = [
        name
        for name in recorded
        if name not in cares
        and (facts := found.get(name)) is not None
        and facts.topic.id == ids.get(name)
        and facts.policy == "compact"
        and _care(facts, recorded[name], ids.get(name), partitions) is TopicAction.KEEP
    ]
    wrong = tuple(name for name in kept if found[name].policy != "compact")
    return TopicActions(found=found, cares=cares, policies=wrong, left=tuple(sorted(left)))


def _care(
    facts: DamagedTopic | None, recorded: list[int] | None, recorded_id: str | None, partitions: int
) -> TopicAction:
    if facts is None:
        return TopicAction.MAKE
    if facts.topic.partitions != partitions or any(facts.starts):
        return TopicAction.REMAKE
    same = facts.topic.id == recorded_id
    if same and recorded is not None and any(end < old for end, old in zip(facts.ends, recorded, strict=True)):
        return TopicAction.REMAKE
    return TopicAction.KEEP

"""Decides from which offsets a store continues, and when it must not continue.

Pure functions: facts about topics and positions in, a position or a `RefusedError` out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from cdc.errors import RefusedError
from cdc.kafka.topics import Topic
from cdc.positions.progress import Progress
from cdc.stores.contract import Position, TopicPosition, caught_up_at
from spark_jobs.sync.delete_retention import is_too_old, needs_bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """The present state of a table topic in Kafka."""

    topic: Topic
    starts: list[int]
    ends: list[int]
    delete_retention_ms: int


def of_this_pipeline(position: Position, topics: Mapping[str, TopicFacts], progress: Progress) -> Position | None:
    """Return the position if the pipeline of `progress` wrote it; None if another one did, or if that is unknown.

    A position of release 0.1.0 has no pipeline id. It belongs to this pipeline if the store has read at least one of
    these topics (by topic id) and is not ahead of them.
    """
    if position.pipeline_id == progress.pipeline_id:
        return position
    has_read = any(
        name in topics and place.topic_id == topics[name].topic.id for name, place in position.topics.items()
    )
    if position.pipeline_id or (position.topics and not (has_read and position.version <= progress.version)):
        return None
    return msgspec.structs.replace(position, pipeline_id=progress.pipeline_id)


def starting_position(
    store: str, found: Position, topics: Mapping[str, TopicFacts], progress: Progress, *, now_ms: int
) -> Position:
    """Return the position to continue from. New topics start at their first offset; deleted topics are dropped from it.

    Refuses if the store could keep rows that were deleted in the source, or miss rows. A topic that a recovery has
    created again (`Progress.remade`) holds a whole copy of its table. A store that read the old topic therefore
    starts at the new topic's first offset. `now_ms` is the broker's time, read before `topics`.
    """
    position = of_this_pipeline(found, topics, progress)
    if position is None:
        raise RefusedError(
            f"Store {store} was built from another pipeline. Versions of two pipelines cannot be compared.",
            remedy=f"Build the store again: tailrace bootstrap {store}",
        )
    remade = progress.remade
    known = {
        name: place
        for name, place in position.topics.items()
        if name not in topics or place.topic_id == topics[name].topic.id or remade.get(name) != topics[name].topic.id
    }
    places = {name: _place(store, known.get(name), name, facts) for name, facts in topics.items()}
    half_read = [name for name, place in places.items() if _is_half_read(place, topics[name])]
    # Only a topic that is read in part can have lost a delete: before the first read the store has no row to delete,
    # and at the end offset the store has read every delete.
    caught_up_ms = position.caught_up_broker_ms if half_read else now_ms
    for name in half_read:
        retention_ms = topics[name].delete_retention_ms
        if is_too_old(caught_up_ms, now_ms, retention_ms):
            raise needs_bootstrap(store, caught_up_ms, now_ms, retention_ms, name)
    return caught_up_at(msgspec.structs.replace(position, topics=places), caught_up_ms)


def _place(store: str, place: TopicPosition | None, name: str, facts: TopicFacts) -> TopicPosition:
    if place is None:
        return TopicPosition(facts.topic.id, tuple(facts.starts))
    remedy = f"Build the store again: tailrace bootstrap {store}"
    if place.topic_id != facts.topic.id:
        raise RefusedError(
            f"Topic {name} was created again since store {store} read it: the old offsets are invalid.", remedy=remedy
        )
    if len(place.next_offsets) != facts.topic.partitions:
        raise RefusedError(
            f"Topic {name} has {facts.topic.partitions} partitions, store {store} has read {len(place.next_offsets)}.",
            remedy=remedy,
        )
    for partition, offset in enumerate(place.next_offsets):
        if offset > facts.ends[partition]:
            raise RefusedError(
                f"Topic {name} ends at offset {facts.ends[partition]} in partition {partition}, but store {store} has"
                f" read to offset {offset}: the broker has lost records.",
                remedy=remedy,
            )
        if offset < facts.starts[partition]:
            raise RefusedError(
                f"Records that store {store} has not read were deleted from {name} (partition {partition}).",
                remedy=remedy,
            )
    return place


def _is_half_read(place: TopicPosition, facts: TopicFacts) -> bool:
    behind = any(offset < end for offset, end in zip(place.next_offsets, facts.ends, strict=True))
    begun = any(offset > start for offset, start in zip(place.next_offsets, facts.starts, strict=True))
    return behind and begun

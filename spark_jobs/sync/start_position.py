"""Where a store's reading begins, and when it must not. Pure: facts in, offsets or a refusal out."""

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
    """A table's topic as Kafka has it now."""

    topic: Topic
    starts: list[int]
    ends: list[int]
    delete_retention_ms: int


def of_this_pipeline(position: Position, topics: Mapping[str, TopicFacts], progress: Progress) -> Position | None:
    """The position, if the pipeline that `progress` describes wrote it; None: another one did, or none can tell.

    A position of release 0.1.0 has no id. It is this pipeline's if it has read one of these very topics, and is not
    ahead of them.
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
    """The position to go on from, with every topic in it: new ones from their beginning, those that are gone left out.

    Refuses where going on could keep rows that were deleted, or leave rows out. Topics that a recovery has made again
    (`remade`) hold a whole copy of the table, so a store that knew the old one begins at the beginning. `now_ms`: the
    broker's time, asked before `topics`.
    """
    position = of_this_pipeline(found, topics, progress)
    if position is None:
        raise RefusedError(
            f"Store {store} was built from another pipeline: the versions that it holds cannot be compared with these.",
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
    # Topics of which nothing was applied yet, and those that are read to their end, have hidden no delete until now.
    caught_up_ms = position.caught_up_broker_ms if half_read else now_ms
    for name in half_read:
        retention_ms = topics[name].delete_retention_ms
        if is_too_old(caught_up_ms, now_ms, retention_ms):
            raise needs_bootstrap(store, caught_up_ms, now_ms, retention_ms, name)
    return caught_up_at(msgspec.structs.replace(position, topics=places), caught_up_ms)


def _place(store: str, place: TopicPosition | None, name: str, facts: TopicFacts) -> TopicPosition:
    if place is None:
        return TopicPosition(facts.topic.id, tuple(facts.starts))
    remedy = f"Build the store anew: tailrace bootstrap {store}"
    if place.topic_id != facts.topic.id:
        raise RefusedError(
            f"Topic {name} was made again since store {store} read it: its offsets mean nothing now.", remedy=remedy
        )
    if len(place.next_offsets) != facts.topic.partitions:
        raise RefusedError(
            f"Topic {name} has {facts.topic.partitions} partitions; store {store} has read {len(place.next_offsets)}.",
            remedy=remedy,
        )
    for partition, offset in enumerate(place.next_offsets):
        if offset > facts.ends[partition]:
            raise RefusedError(
                f"Topic {name} ends at {facts.ends[partition]} in partition {partition}, and store {store} has read to"
                f" {offset}: the broker has lost records.",
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

"""Where a store's reading begins, and when it must not. Pure: facts in, offsets or a refusal out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.errors import RefusedError
from cdc.topics import Topic
from sinks.contract import Position, TopicPosition
from spark_jobs.stores.delete_retention import is_too_old, needs_bootstrap

_NONE_REMADE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A table's topic as Kafka has it now."""

    topic: Topic
    starts: list[int]
    ends: list[int]
    delete_retention_ms: int


def starting_position(
    store: str,
    position: Position,
    topics: Mapping[str, TopicFacts],
    *,
    now_ms: int,
    remade: Mapping[str, str] = _NONE_REMADE,
) -> Position:
    """The position to go on from, with every topic in it: new ones from their beginning, those that are gone left out.

    Refuses where going on could keep rows that were deleted, or leave rows out. `remade`: topics that a recovery has
    made anew, and their ids: a whole copy of the table is in them, so whoever knew the old one begins at the beginning.
    `now_ms`: the broker's time, asked before `topics`.
    """
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
    return Position(
        owner=position.owner,
        topics=places,
        version=position.version,
        lsn=position.lsn,
        caught_up_ms=caught_up_ms,
        caught_up_broker_ms=caught_up_ms,
        written_ms=position.written_ms,
    )


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

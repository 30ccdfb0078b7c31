"""The state of the topics that a bootstrap builds from, read at one moment. Reads Kafka only."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.kafka.topics import Topics
from cdc.lsn import Version
from cdc.positions.offset_index import Point
from cdc.positions.progress import Progress
from cdc.stores.contract import TableSchema
from spark_jobs.bootstrap.completeness import reasons_before
from spark_jobs.shape.store_tables import chosen_tables
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.start_position import TopicFacts
from spark_jobs.sync.topic_facts import read_topic_facts

_FIRST_PROGRESS_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The topics' state. `point`: the progress record that the new generation will be complete as of.

    `reasons`: why the new generation could not be complete.
    """

    progress: Progress
    point: Point
    tables: dict[str, TableSchema]
    #: Published tables that the store does not get.
    others: dict[str, TableSchema]
    facts: dict[str, TopicFacts]
    reasons: list[str]
    #: When the bootstrap began, by the broker's clock.
    began_ms: int
    #: By the broker's clock: `point` covers everything that was appended before this time.
    caught_up_ms: int

    @classmethod
    def read(cls, config: Config, name: str, follower: ProgressFollower) -> TopicState:
        """Read the state for store `name`. Waits up to 30 seconds for the first progress record."""
        give_up_at = time.monotonic() + _FIRST_PROGRESS_SECONDS
        while follower.progress() is None and time.monotonic() < give_up_at:
            time.sleep(0.05)
        progress = follower.progress()
        if progress is None:
            raise RefusedError("Capture has published nothing yet.", remedy="Start capture first: tailrace capture")
        began_ms = follower.broker_ms()
        follower.catch_up()
        has_read_all = follower.has_read_all()
        progress = follower.progress() or progress
        streaming = follower.newest() if progress.state == "streaming" else None
        known = follower.tables()
        if not known:
            raise RefusedError("Capture has published no table yet.", remedy="Start capture first: tailrace capture")
        tables = chosen_tables(config.stores[name], known)
        if not tables:
            raise RefusedError(f"Capture has published none of the tables that store {name} lists.")
        facts = read_topic_facts(config, tables)
        topics = Topics(config.kafka)
        try:
            policies = topics.cleanup_policies(tables)
        finally:
            topics.close()
        return cls(
            progress=progress,
            point=streaming or _point_at_topic_ends(facts),
            tables=tables,
            others={topic: table for topic, table in known.items() if topic not in tables},
            facts=facts,
            reasons=reasons_before(progress, facts, policies),
            began_ms=began_ms,
            caught_up_ms=streaming.broker_ms if streaming is not None and not has_read_all else began_ms,
        )


def ends_for(point: Point, start: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the end offsets of `point` for the topics in `start`; at least the start offsets."""
    return {
        topic: [max(each) for each in zip(offsets, point.end_offsets.get(topic, offsets), strict=True)]
        for topic, offsets in start.items()
    }


def _point_at_topic_ends(facts: dict[str, TopicFacts]) -> Point:
    """Return a point with the topics' present ends and LSN 0.

    During an initial snapshot no progress record says which LSN the topics have reached.
    """
    return Point(0, Version(0, 0), {name: each.ends for name, each in facts.items()}, 0, 0)

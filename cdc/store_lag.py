"""How far each store is behind the source: bytes of log, records of the topics, seconds. Reads, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.config import Config
from cdc.control import read_last
from cdc.errors import RefusedError, TransientError
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.postgres import connect
from cdc.progress import KEY, Progress, decode
from cdc.store_positions import StorePosition, read_positions
from cdc.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLag:
    """None where nobody can tell: the store or the source does not answer, or nothing was built yet."""

    name: str
    lsn: LSN | None
    bytes: int | None
    records: int | None
    seconds: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """`source_lsn` None: the source does not answer. `topics_lsn`: everything before it is published."""

    source_lsn: LSN | None
    topics_lsn: LSN | None
    stores: list[StoreLag]


def read_lag(config: Config, names: Sequence[str]) -> Lag:
    source = _source_lsn(config)
    data = read_last(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS), KEY)
    progress = None if data is None else decode(data)
    ends = _ends(config, progress)
    stores = [_lag(found, source, progress, ends) for found in read_positions(config, names)]
    return Lag(source_lsn=source, topics_lsn=LSN(progress.confirm_lsn) if progress else None, stores=stores)


def _source_lsn(config: Config) -> LSN | None:
    try:
        with connect(config.source.conninfo()) as connection:
            row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    except (TransientError, RefusedError):
        return None
    return LSN.parse(row[0]) if row is not None else None


def _ends(config: Config, progress: Progress | None) -> dict[str, list[int]]:
    if progress is None:
        return {}
    topics = Topics(config.kafka)
    try:
        existing = topics.describe(progress.end_offsets)
        return topics.end_offsets({name: topic.partitions for name, topic in existing.items()})
    finally:
        topics.close()


def _lag(found: StorePosition, source: LSN | None, progress: Progress | None, ends: dict[str, list[int]]) -> StoreLag:
    position = found.position
    if position is None:
        problem = found.problem or "nothing is served yet"
        return StoreLag(name=found.name, lsn=None, bytes=None, records=None, seconds=None, problem=problem)
    records = sum(
        max(0, end - offset)
        for name, each in ends.items()
        for end, offset in zip(
            each, position.topics[name].next_offsets if name in position.topics else [0] * len(each), strict=False
        )
    )
    return StoreLag(
        name=found.name,
        lsn=found.lsn,
        bytes=max(0, source - found.lsn) if source is not None else None,
        records=records,
        seconds=_seconds(position.lsn, position.caught_up_ms, source, progress),
    )


def _seconds(lsn: int, caught_up_ms: int, source: LSN | None, progress: Progress | None) -> float:
    """Nothing was written since: not behind, however long ago that was."""
    if source is not None and lsn >= source:
        return 0.0
    if source is None and progress is not None and lsn >= progress.confirm_lsn:
        return 0.0
    return max(0.0, time.time() - caught_up_ms / 1000)

"""The lag of each store: an extract of the status record (`cdc.monitoring.status_record`)."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.lsn import LSN
from cdc.monitoring.status_record import PipelineStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLag:
    """The lag of one store. A figure is None if the store or the source does not answer, or nothing was built yet."""

    name: str
    lsn: LSN | None
    bytes: int | None
    records: int | None
    seconds: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLags:
    """The lag of all stores. `source_lsn` is None if the source does not answer.

    `topics_lsn`: every change before this LSN has been published.
    """

    source_lsn: LSN | None
    topics_lsn: LSN | None
    stores: list[StoreLag]


def lag_of(record: PipelineStatus) -> StoreLags:
    """Return the lag of all stores in a status record."""
    return StoreLags(
        source_lsn=record.source.lsn,
        topics_lsn=record.topics.lsn,
        stores=[
            StoreLag(
                name=store.name,
                lsn=store.lsn,
                bytes=store.bytes,
                records=store.records,
                seconds=store.seconds,
                problem=store.problem or (None if store.lsn is not None else "nothing is served yet"),
            )
            for store in record.stores
        ],
    )

"""`[snapshot]`: how fast initial and incremental snapshots read the source."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.config.settings import about, at_least, between


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    initial: bool = field(
        default=True,
        metadata=about(
            "Take an initial snapshot when a pipeline starts for the first time; without it, tables stay incomplete",
            formerly="first",
        ),
    )
    connections: int = field(
        default=4,
        metadata=about("Most chunks that Spark reads in parallel, each over its own connection", between(1, 256)),
    )
    chunk_mb: int = field(
        default=64, metadata=about("Size of one chunk in megabytes of the table, TOAST included", between(1, 4096))
    )
    rows_per_second: int = field(
        default=0, metadata=about("Most rows per second over all connections; 0: no limit", at_least(0))
    )

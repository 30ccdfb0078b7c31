"""`[copy]`: how tables are copied, so that the copy is quick and the source is not hurt by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.config.settings import about, at_least, between


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    first: bool = field(
        default=True,
        metadata=about(
            "Whether a new pipeline begins with a copy of what is in the tables; without, they stay incomplete"
        ),
    )
    connections: int = field(
        default=4,
        metadata=about("Most chunks that are read at the same time, each over one connection", between(1, 256)),
    )
    chunk_mb: int = field(
        default=64, metadata=about("What one chunk reads: megabytes of the table with its TOAST", between(1, 4096))
    )
    rows_per_second: int = field(
        default=0, metadata=about("Most rows a second, over all connections together; 0 is no limit", at_least(0))
    )

"""`[audit]`: the rate of the continuous comparison of stores with the source."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.config.settings import about, between


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    rows_per_second: int = field(
        default=0,
        metadata=about(
            "Random rows per second that `tailrace run` compares with the source; 0: none",
            between(0, 100_000),
        ),
    )

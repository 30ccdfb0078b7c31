"""`[audit]`: how much of the stores is compared with the source all the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.config.settings import about, between


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    rows_per_second: int = field(
        default=0,
        metadata=about(
            "Rows a second that `tailrace run` compares with the source, at random, all the time; 0 is none",
            between(0, 100_000),
        ),
    )

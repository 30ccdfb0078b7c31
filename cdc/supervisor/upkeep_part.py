"""The warehouse's upkeep, as a part that comes due every so many hours and ends by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cdc.config import Config, Iceberg
from cdc.supervisor.part import Part


def maintain_hours(config: Config, name: str) -> float:
    """0: never."""
    settings = config.stores[name]
    return settings.maintain_hours if isinstance(settings, Iceberg) else 0.0


def upkeep_part(name: str, hours: float, arguments: Sequence[str], **given: Any) -> Part:
    """First due when this has run for as long: a restart is no reason to compact."""
    due_at = time.monotonic() + hours * 3600

    def ended() -> None:
        nonlocal due_at
        due_at = time.monotonic() + hours * 3600

    return Part(
        f"maintain-{name}",
        arguments,
        is_due=lambda: time.monotonic() >= due_at,
        ends_by_itself=True,
        when_ended=ended,
        **given,
    )

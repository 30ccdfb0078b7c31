"""The wall clock. Durations are measured with `time.monotonic` instead."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the milliseconds since 1970, the unit of every recorded time."""
    return time.time_ns() // 1_000_000

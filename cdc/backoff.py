"""Computes the delays between repeated attempts. It does not sleep or read a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
# A run of at least this length was successful, so its failure starts a new series of delays.
LONG_LIFE_SECONDS = 60.0


@dataclass(slots=True)
class Backoff:
    """Exponential backoff: each delay is `factor` times the last one, up to a limit, until `reset` or a long run."""

    first_seconds: float = FIRST_SECONDS
    longest_seconds: float = LONGEST_SECONDS
    long_session_seconds: float = LONG_LIFE_SECONDS
    factor: float = 2.0
    _next_seconds: float = field(default=0.0, init=False)

    def after(self, lived_seconds: float) -> float:
        """Return the seconds to wait after a run that took `lived_seconds`."""
        if lived_seconds >= self.long_session_seconds:
            self.reset()
        return self.next_delay()

    def next_delay(self) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = min(self._next_seconds or self.first_seconds, self.longest_seconds)
        self._next_seconds = delay * self.factor
        return delay

    def reset(self) -> None:
        """Start over with the shortest delay."""
        self._next_seconds = 0.0

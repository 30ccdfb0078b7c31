"""Computes the delay before a failed process or connection is started again. It does not sleep or read a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
# A run of at least this length was successful, so its failure starts a new series of delays.
LONG_LIFE_SECONDS = 60.0


@dataclass(slots=True)
class Backoff:
    """Exponential backoff: the delay doubles after each short run, up to a limit, and starts over after a long run."""

    first_seconds: float = FIRST_SECONDS
    longest_seconds: float = LONGEST_SECONDS
    long_session_seconds: float = LONG_LIFE_SECONDS
    _next_seconds: float = field(default=0.0, init=False)

    def after(self, lived_seconds: float) -> float:
        """Return the seconds to wait after a run that took `lived_seconds`."""
        if lived_seconds >= self.long_session_seconds:
            self.reset()
        pause = self._next_seconds or self.first_seconds
        self._next_seconds = min(pause * 2, self.longest_seconds)
        return pause

    def reset(self) -> None:
        """Start over with the shortest delay."""
        self._next_seconds = 0.0

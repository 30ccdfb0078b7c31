"""How long to wait before something that died is started again. No clock and no sleep: numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
# Whoever lived this long had got somewhere: its end is news, not the next of a series.
LONG_LIFE_SECONDS = 60.0


@dataclass(slots=True)
class Backoff:
    """Twice as long after each short life, up to a limit; back to the beginning after a long one."""

    first_seconds: float = FIRST_SECONDS
    longest_seconds: float = LONGEST_SECONDS
    long_life_seconds: float = LONG_LIFE_SECONDS
    _next_seconds: float = field(default=0.0, init=False)

    def after(self, lived_seconds: float) -> float:
        if lived_seconds >= self.long_life_seconds:
            self.reset()
        pause = self._next_seconds or self.first_seconds
        self._next_seconds = min(pause * 2, self.longest_seconds)
        return pause

    def reset(self) -> None:
        self._next_seconds = 0.0

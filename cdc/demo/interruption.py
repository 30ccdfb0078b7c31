"""Handles Ctrl-C and SIGTERM so that a second signal does not interrupt the shutdown that the first one started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cdc.stop_signals import handled_by


class Interruption:
    """The signal handler. The first signal raises KeyboardInterrupt in the main thread; later ones are ignored."""

    def __init__(self) -> None:
        self._ignored = False

    def expect_another(self) -> None:
        """Let the next signal raise KeyboardInterrupt again."""
        self._ignored = False

    def ignore(self) -> None:
        """Ignore all further signals, because the program is ending."""
        self._ignored = True

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self._ignored:
            self._ignored = True
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle both signals within the block. Only the main thread may call this."""
    interruption = Interruption()
    with handled_by(interruption.handle):
        yield interruption

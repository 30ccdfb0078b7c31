"""Ctrl-C and SIGTERM end a program once, in good order: the second one must not cut the cleaning up short."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """The first signal raises KeyboardInterrupt in the main thread; once ignored, further ones do nothing."""

    def __init__(self) -> None:
        self._ignored = False

    def expect_another(self) -> None:
        """The first one has been dealt with; the next one counts again."""
        self._ignored = False

    def ignore(self) -> None:
        """From here on the program is ending anyway."""
        self._ignored = True

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._ignored:
            self._ignored = True
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Take both signals for the time of the block; from the main thread only."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.handle) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

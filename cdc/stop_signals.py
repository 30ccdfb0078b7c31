"""Signal handlers of a process: an event that signals set, and handlers that are in place only within a block.

Python lets only the main thread set handlers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: Ctrl-C, and the request of a process supervisor.
STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


def event_on(numbers: Collection[signal.Signals] = STOP_SIGNALS) -> threading.Event:
    """Return an event that these signals set, instead of ending the process."""
    event = threading.Event()
    for number in numbers:
        signal.signal(number, lambda _number, _frame: event.set())
    return event


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle `STOP_SIGNALS` with this function within the block."""
    with kept_handlers():
        for number in STOP_SIGNALS:
            signal.signal(number, handler)
        yield


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Restore the handlers of `STOP_SIGNALS` after the block. In another thread this does nothing."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # None: C code set the handler
                    signal.signal(number, handler)

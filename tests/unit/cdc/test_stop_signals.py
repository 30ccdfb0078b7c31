"""The handlers of signals: events, and handlers that are in place only within a block."""

from __future__ import annotations

import signal

from cdc.stop_signals import event_on, handled_by, kept_handlers


def test_a_signal_sets_its_own_event_only() -> None:
    """SIGTERM and SIGINT set the event; a signal with an event of its own does not."""
    with kept_handlers():
        stop = event_on()
        other = event_on({signal.SIGINT})
        signal.raise_signal(signal.SIGINT)
        assert (stop.is_set(), other.is_set()) == (False, True)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()


def test_the_handlers_of_before_are_restored() -> None:
    """A handler is called within the block, and those of before are restored after it."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[int] = []
    with handled_by(lambda number, _frame: seen.append(number)):
        signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

"""Waits on a condition with a deadline; tests wait in no other way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 0.25


def eventually(condition: Callable[[], T], deadline_seconds: float = 30.0, what: str = "the condition") -> T:
    """Return the first true value of `condition`; after the deadline fail with the name of the condition.

    An assertion that fails inside `condition` counts as "not yet", and its message is shown at the end.
    """
    give_up_at = time.monotonic() + deadline_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        last: object
        try:
            answer = condition()
        except AssertionError as not_yet:
            last = not_yet
        else:
            if answer:
                return answer
            last = repr(answer)
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"waited {deadline_seconds:g} s in vain for {what}; last answer: {last}")
        time.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 1.5, _LONGEST_PAUSE_SECONDS)

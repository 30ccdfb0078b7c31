"""Gives back memory that was freed: glibc keeps what it once got, in pieces, and the peak of a long run creeps up."""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own; others do without


def give_back() -> None:
    """A few milliseconds without the GIL; worth it after some ten megabytes."""
    if _trim is not None:
        _trim(0)

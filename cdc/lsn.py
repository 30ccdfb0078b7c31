"""LSN, a byte position in the write-ahead log, and Version, the order of changes, which is built from it.

A commit's LSN and the number of the change within its transaction put every change into one total order. Code must not
order changes by anything else: see docs/design/log-and-versions.md.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(r"\A([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


class LSN(int):
    """A log sequence number, printed as Postgres prints it (`16/B374D848`)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> LSN:
        """Return the LSN that `text` writes as Postgres does; raise ValueError for any other text."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r} (an LSN looks like 16/B374D848)")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"LSN({str(self)!r})"


class Version(NamedTuple):
    """The version of a change: `(position, seq)`, compared in this order. Everywhere the larger version wins.

    `position` is the commit LSN plus the pipeline's base. `seq` counts the row and truncate messages of the transaction
    from 1. Rows of a snapshot have `seq` 0, so a change that commits at the same LSN replaces them.
    """

    position: int
    seq: int

    def __str__(self) -> str:
        """Return fixed-width hexadecimal, so that text order is version order. Redis compares versions as text."""
        return f"{self.position:016x}.{self.seq:08x}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version that `str` wrote as `text`; raise ValueError for any other text."""
        position, _, seq = text.partition(".")
        if len(position) != 16 or len(seq) != 8:
            raise ValueError(f"not a version: {text!r}")
        return cls(int(position, 16), int(seq, 16))

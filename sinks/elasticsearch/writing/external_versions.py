"""Maps a version to Elasticsearch's external version: one non-negative number of 63 bits. Pure: no I/O.

The number has 47 bits for the position and 16 bits for `seq`. Every LSN and every base is a multiple of 8, so 47 bits
suffice for 1 PiB of WAL. A `seq` up to 32,767 is stored exactly. A larger one is stored as its leading 11 bits and
their exponent. So two changes of one row in one transaction have the same number only if they are closer than a
thousandth of their `seq`.

Release 0.1.0 used 12 bits for `seq`, and gave every change after the 4,095th of a transaction the same number. In a
generation that release 0.1.0 wrote, versions up to the position at the upgrade keep those numbers. They are smaller
than all numbers that are assigned now. So a replayed old change does not appear newer than the stored document.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cdc.errors import RefusedError
from cdc.lsn import Version

#: The first position that is too large for a number.
POSITION_LIMIT: Final = 1 << 50
_SEQ_BITS: Final = 16
_EXACT_BITS: Final = 15
_EXACT: Final = 1 << _EXACT_BITS
_LEADING_BITS: Final = 10  # after the first, which is always set

_NARROW_SEQ_BITS: Final = 12
_NARROW_LARGEST_SEQ: Final = (1 << _NARROW_SEQ_BITS) - 1
_NARROW_POSITION_LIMIT: Final = 1 << 54


class VersionScheme(NamedTuple):
    """Maps the versions of one generation to numbers."""

    #: Versions up to this position are numbered as in release 0.1.0.
    narrow_to: int = 0

    def number(self, version: Version) -> int:
        """Return the version's number. A larger version never has a smaller number. Hot: called once for each row."""
        position, seq = version
        if position <= self.narrow_to:
            return _narrow(position, seq)
        if position >= POSITION_LIMIT:
            raise RefusedError(f"Position {position} exceeds the limit of an Elasticsearch version (1 PiB of WAL).")
        return position >> 3 << _SEQ_BITS | (seq if seq < _EXACT else _coarse(seq))

    def says(self, number: int, version: Version) -> bool:
        """Whether `number` is the version's number, or its number in release 0.1.0.

        The last rows before the upgrade may still have the old number.
        """
        try:
            return number == self.number(version) or (self.narrow_to > 0 and number == _narrow(*version))
        except RefusedError:  # too large for a number, so Tailrace did not write this version
            return False

    def version(self, number: int) -> Version:
        """Return the approximate version of a number. For numbers that another program chose."""
        if number <= _narrow(min(self.narrow_to, _NARROW_POSITION_LIMIT - 8), _NARROW_LARGEST_SEQ):
            return Version(number >> _NARROW_SEQ_BITS << 3, number & _NARROW_LARGEST_SEQ)
        return Version(number >> _SEQ_BITS << 3, number & ((1 << _SEQ_BITS) - 1))


#: The numbering of a generation that release 0.1.0 created and that no later release has taken.
NARROW: Final = VersionScheme(narrow_to=_NARROW_POSITION_LIMIT)


def numbering_after(position: int) -> VersionScheme:
    """Return the numbering of a generation that release 0.1.0 wrote up to `position`.

    A very large position leaves no room for more bits of `seq`, so the old numbering stays.
    """
    return VersionScheme(narrow_to=position) if position < POSITION_LIMIT // 2 else NARROW


def _narrow(position: int, seq: int) -> int:
    if position >= _NARROW_POSITION_LIMIT:
        raise RefusedError(f"Position {position} exceeds the limit of an Elasticsearch version (16 PiB of WAL).")
    return position >> 3 << _NARROW_SEQ_BITS | min(seq, _NARROW_LARGEST_SEQ)


def _coarse(seq: int) -> int:
    """Encode a large `seq` as its exponent and its leading bits. The result is above all exact values."""
    exponent = seq.bit_length() - _EXACT_BITS - 1
    leading = seq >> exponent + _EXACT_BITS - _LEADING_BITS & (1 << _LEADING_BITS) - 1
    return _EXACT + (exponent << _LEADING_BITS) + leading

"""A version as the one number that Elasticsearch compares: an external version, 63 bits and not negative. Pure.

47 bits of the position (every LSN is a multiple of 8, and so is every base) and 16 bits for `seq`. That is room for
1 PiB of WAL. A `seq` up to 32,767 stands there as it is. Above that its leading 11 bits do, with their exponent: two
changes of one row in one transaction have the same number only if they are closer than a thousandth of their `seq`.

Release 0.1.0 had 12 bits for `seq` and gave every change past the 4,095th of a transaction the same number. In a
generation that it has written, versions up to the position at the upgrade keep those numbers, which are smaller than
any that is given now: so a replay of an old change does not look newer than what is there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cdc.errors import RefusedError
from cdc.lsn import Version

#: The first position that no number is left for.
POSITION_LIMIT: Final = 1 << 50
_SEQ_BITS: Final = 16
_EXACT_BITS: Final = 15
_EXACT: Final = 1 << _EXACT_BITS
_LEADING_BITS: Final = 10  # after the first, which is always set

_NARROW_SEQ_BITS: Final = 12
_NARROW_LARGEST_SEQ: Final = (1 << _NARROW_SEQ_BITS) - 1
_NARROW_POSITION_LIMIT: Final = 1 << 54


class Numbering(NamedTuple):
    """How the versions of one generation are numbered."""

    #: Up to this position as release 0.1.0 did it.
    narrow_to: int = 0

    def number(self, version: Version) -> int:
        """A larger version never has a smaller number. Hot: once for each row."""
        position, seq = version
        if position <= self.narrow_to:
            return _narrow(position, seq)
        if position >= POSITION_LIMIT:
            raise RefusedError(f"Position {position} is past what an Elasticsearch version can hold (1 PiB of WAL).")
        return position >> 3 << _SEQ_BITS | (seq if seq < _EXACT else _coarse(seq))

    def says(self, number: int, version: Version) -> bool:
        """Whether this is the version's number. The last rows before the upgrade may still have the old one."""
        try:
            return number == self.number(version) or (self.narrow_to > 0 and number == _narrow(*version))
        except RefusedError:  # past what a number can hold: no version of ours
            return False

    def version(self, number: int) -> Version:
        """About the version of a number that some other program has chosen."""
        if number <= _narrow(min(self.narrow_to, _NARROW_POSITION_LIMIT - 8), _NARROW_LARGEST_SEQ):
            return Version(number >> _NARROW_SEQ_BITS << 3, number & _NARROW_LARGEST_SEQ)
        return Version(number >> _SEQ_BITS << 3, number & ((1 << _SEQ_BITS) - 1))


#: Of a generation that release 0.1.0 has made and no later one has taken.
NARROW: Final = Numbering(narrow_to=_NARROW_POSITION_LIMIT)


def numbering_after(position: int) -> Numbering:
    """Of a generation that release 0.1.0 has written up to here. A very large position leaves no room for more bits."""
    return Numbering(narrow_to=position) if position < POSITION_LIMIT // 2 else NARROW


def _narrow(position: int, seq: int) -> int:
    if position >= _NARROW_POSITION_LIMIT:
        raise RefusedError(f"Position {position} is past what an Elasticsearch version can hold (16 PiB of WAL).")
    return position >> 3 << _NARROW_SEQ_BITS | min(seq, _NARROW_LARGEST_SEQ)


def _coarse(seq: int) -> int:
    """Above all exact ones: the exponent, then the leading bits."""
    exponent = seq.bit_length() - _EXACT_BITS - 1
    leading = seq >> exponent + _EXACT_BITS - _LEADING_BITS & (1 << _LEADING_BITS) - 1
    return _EXACT + (exponent << _LEADING_BITS) + leading

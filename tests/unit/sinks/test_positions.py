"""A position that is not the one a driver saved last: another driver's, or one of before."""

from __future__ import annotations

import pytest

from cdc.lsn import Version
from sinks.contract import Position, PositionLostError, TakenOverError, displaced

_MINE = Position(owner="me", version=Version(100, 2), lsn=100)


@pytest.mark.parametrize(
    "found",
    [
        Position(owner="other", version=Version(100, 2), lsn=100),  # just taken
        Position(owner="other", version=Version(100, 2), lsn=108),  # and led on by heartbeats
        Position(owner="other", version=Version(200, 0), lsn=200),
        Position(owner="other", version=Version(200, 0), lsn=8),  # on a server whose LSNs start lower
    ],
)
def test_another_driver_only_gets_further(found: Position) -> None:
    """So this one stops, and says that a person must decide which of them it is to be."""
    assert isinstance(displaced(found, _MINE), TakenOverError)


@pytest.mark.parametrize(
    "found",
    [
        Position(owner="before", version=Version(90, 1), lsn=90),
        Position(owner="before", version=Version(100, 2), lsn=92),
        Position(owner="me", version=Version(90, 1), lsn=90),
        Position(),
    ],
)
def test_a_store_that_is_not_as_far_was_restored(found: Position) -> None:
    """Whoever owned it when the backup was made: the driver starts over from what the store says now."""
    assert isinstance(displaced(found, _MINE), PositionLostError)

"""A position that differs from the one the driver saved last: another driver's, or a restored one."""

from __future__ import annotations

import pytest

from cdc.lsn import Version
from cdc.stores.contract import Position, PositionLostError, TakenOverError, position_changed_error

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
    """A position further ahead is another driver's: this one stops with a refusal."""
    assert isinstance(position_changed_error(found, _MINE), TakenOverError)


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
    """A position further back comes from a restored backup: the driver starts from the store's position."""
    assert isinstance(position_changed_error(found, _MINE), PositionLostError)

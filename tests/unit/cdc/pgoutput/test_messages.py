"""Messages of the stream are immutable, and "left out" is never confused with NULL."""

from __future__ import annotations

import pytest

from cdc.pgoutput.decoder import decode_message
from cdc.pgoutput.messages import UNCHANGED, Begin, Insert, Update
from tests.harness.postgres.pgoutput import LEFT_OUT, insert


def test_a_message_cannot_be_changed() -> None:
    """A message is immutable, since two threads share it."""
    message = Begin(*map(int, (1, 2, 3)))  # type: ignore[arg-type]  # an LSN is an int
    with pytest.raises(AttributeError):
        message.xid = 4  # type: ignore[misc]


def test_left_out_is_a_marker_of_its_own() -> None:
    """A left-out value is a marker of its own and not NULL."""
    assert Update(1, None, False, [None]) != Update(1, None, False, [UNCHANGED])


def test_values_do_not_follow_the_buffer_that_they_were_read_from() -> None:
    """Values are copies, so that the buffer they were read from can be reused."""
    buffer = bytearray(insert(7, ["abc", LEFT_OUT]))
    message = decode_message(bytes(buffer))
    buffer[-4:] = b"\0" * 4
    assert message == Insert(7, [b"abc", UNCHANGED])

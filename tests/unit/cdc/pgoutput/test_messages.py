"""The facts of the stream: they do not change, and "left out" is never mistaken for NULL."""

from __future__ import annotations

import pytest

from cdc.pgoutput.decoder import decode_message
from cdc.pgoutput.messages import UNCHANGED, Begin, Insert, Update
from tests.harness.postgres.pgoutput import LEFT_OUT, insert


def test_a_message_cannot_be_changed() -> None:
    """It is shared between the thread that reads and the thread that publishes."""
    message = Begin(*map(int, (1, 2, 3)))  # type: ignore[arg-type]  # an LSN is an int
    with pytest.raises(AttributeError):
        message.xid = 4  # type: ignore[misc]


def test_left_out_is_a_marker_of_its_own() -> None:
    """NULL is a value that a row has; left out means that the row has another one, which we were not sent."""
    assert Update(1, None, False, [None]) != Update(1, None, False, [UNCHANGED])


def test_values_do_not_follow_the_buffer_that_they_were_read_from() -> None:
    """Values are copies of their part of the message, so that a buffer can be reused by whoever read it."""
    buffer = bytearray(insert(7, ["abc", LEFT_OUT]))
    message = decode_message(bytes(buffer))
    buffer[-4:] = b"\0" * 4
    assert message == Insert(7, [b"abc", UNCHANGED])

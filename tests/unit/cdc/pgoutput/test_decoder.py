"""The decoder reads every pgoutput message from hand-made bytes, and refuses everything else with a clear error."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.lsn import LSN
from cdc.pgoutput.decoder import decode_message
from cdc.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Truncate,
    Type,
    Update,
    Value,
)
from tests.harness.postgres import pgoutput
from tests.harness.postgres.pgoutput import LEFT_OUT

COLUMNS = [("id", 20, -1, True), ("näme", 1043, 84, False)]

MESSAGES: dict[str, tuple[bytes, Message]] = {
    "begin": (
        pgoutput.begin(0x16_B374D848, commit_time_us=-5, xid=4_294_967_295),
        Begin(LSN(0x16_B374D848), -5, 4_294_967_295),
    ),
    "commit": (
        pgoutput.commit(0x16_B374D848, end_lsn=0x16_B374D878, commit_time_us=815_000_000_000_000),
        Commit(LSN(0x16_B374D848), LSN(0x16_B374D878), 815_000_000_000_000),
    ),
    "relation": (
        pgoutput.relation(16_384, "public", 'Odd "name"', COLUMNS),
        Relation(
            16_384,
            "public",
            'Odd "name"',
            ReplicaIdentity.DEFAULT,
            (RelationColumn("id", 20, -1, True), RelationColumn("näme", 1043, 84, False)),
        ),
    ),
    "relation without columns": (
        pgoutput.relation(1, "s", "t", [], identity="n"),
        Relation(1, "s", "t", ReplicaIdentity.NOTHING, ()),
    ),
    "relation in pg_catalog": (
        pgoutput.relation(1, "", "t", [], identity="f"),
        Relation(1, "pg_catalog", "t", ReplicaIdentity.FULL, ()),
    ),
    "relation with an index as identity": (
        pgoutput.relation(1, "s", "t", COLUMNS[:1], identity="i"),
        Relation(1, "s", "t", ReplicaIdentity.INDEX, (RelationColumn("id", 20, -1, True),)),
    ),
    "type": (pgoutput.type_(16_390, "public", "mood"), Type(16_390, "public", "mood")),
    "type in pg_catalog": (pgoutput.type_(25, "", "text"), Type(25, "pg_catalog", "text")),
    "insert": (
        pgoutput.insert(16_384, ["1", "a\nb", None, "", LEFT_OUT]),
        Insert(16_384, [b"1", b"a\nb", None, b"", UNCHANGED]),
    ),
    "insert that ends in text": (pgoutput.insert(1, [None, "last"]), Insert(1, [None, b"last"])),
    "insert of a row without columns": (pgoutput.insert(1, []), Insert(1, [])),
    "insert of a long value": (pgoutput.insert(1, ["x" * 70_000]), Insert(1, [b"x" * 70_000])),
    "update": (pgoutput.update(7, ["1", LEFT_OUT]), Update(7, None, False, [b"1", UNCHANGED])),
    "update with the old key": (
        pgoutput.update(7, ["2", LEFT_OUT], key=["1", None]),
        Update(7, [b"1", None], False, [b"2", UNCHANGED]),
    ),
    "update with the whole old row": (
        pgoutput.update(7, ["1", LEFT_OUT, None], old=["1", "kept", None]),
        Update(7, [b"1", b"kept", None], True, [b"1", UNCHANGED, None]),
    ),
    "delete by key": (pgoutput.delete(7, key=["1", None]), Delete(7, [b"1", None], False)),
    "delete of a whole row": (pgoutput.delete(7, old=["1", "a"]), Delete(7, [b"1", b"a"], True)),
    "truncate": (pgoutput.truncate(7), Truncate((7,), False, False)),
    "truncate of several tables, cascading": (
        pgoutput.truncate(7, 8, 4_000_000_000, cascade=True),
        Truncate((7, 8, 4_000_000_000), True, False),
    ),
    "truncate that restarts sequences": (pgoutput.truncate(7, restart_identity=True), Truncate((7,), False, True)),
    "truncate with both flags": (
        pgoutput.truncate(7, cascade=True, restart_identity=True),
        Truncate((7,), True, True),
    ),
    "logical message": (
        pgoutput.logical_message("tailrace.heartbeat", b"\x00\xff"),
        LogicalMessage(True, LSN(0x4000), "tailrace.heartbeat", b"\x00\xff"),
    ),
    "logical message outside a transaction, empty": (
        pgoutput.logical_message("", b"", transactional=False),
        LogicalMessage(False, LSN(0x4000), "", b""),
    ),
    "origin": (pgoutput.origin(0x99, "pg_16395"), Origin(LSN(0x99), "pg_16395")),
}

SAMPLES = pytest.mark.parametrize(("data", "message"), MESSAGES.values(), ids=MESSAGES.keys())


@SAMPLES
def test_every_kind_of_message_is_decoded(data: bytes, message: Message) -> None:
    """Each message of the manual decodes to its class in cdc.pgoutput.messages."""
    assert decode_message(data) == message


@SAMPLES
def test_every_truncation_is_refused(data: bytes, message: Message) -> None:
    """A message cut at any byte is refused."""
    cuts = range(len(data)) if len(data) < 1000 else [*range(50), len(data) // 2, len(data) - 1]
    for cut in cuts:
        with pytest.raises(ProtocolError):
            decode_message(data[:cut])


@SAMPLES
@pytest.mark.parametrize("rest", [b"\0", b"n", b"N\0\0", b"trailing"])
def test_trailing_bytes_are_refused(data: bytes, message: Message, rest: bytes) -> None:
    """A message with trailing bytes is refused."""
    with pytest.raises(ProtocolError):
        decode_message(data + rest)


def test_unknown_types_are_refused() -> None:
    """Unknown types are refused, including streamed and two-phase messages, which capture never requests."""
    for first in set(range(256)) - set(b"BCRYIUDTMO"):
        with pytest.raises(ProtocolError, match="unknown pgoutput message type"):
            decode_message(bytes([first]) + b"\0" * 40)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"I" + pgoutput.number(7, 4) + b"K" + pgoutput.cells(["1"]), id="insert of a key"),
        pytest.param(b"U" + pgoutput.number(7, 4) + b"X" + pgoutput.cells(["1"]), id="update of an unknown tuple"),
        pytest.param(
            b"U" + pgoutput.number(7, 4) + b"K" + pgoutput.cells(["1"]) + b"O" + pgoutput.cells(["1"]),
            id="update with two old tuples",
        ),
        pytest.param(b"D" + pgoutput.number(7, 4) + b"N" + pgoutput.cells(["1"]), id="delete of a new row"),
        pytest.param(
            b"I" + pgoutput.number(7, 4) + b"N" + pgoutput.number(1, 2) + b"b" + pgoutput.number(4, 4) + b"\0\0\0\1",
            id="binary value",
        ),
        pytest.param(pgoutput.relation(1, "s", "t", [], identity="x"), id="unknown replica identity"),
        pytest.param(b"Y" + pgoutput.number(1, 4) + b"\xff\xfe\0mood\0", id="name that is not UTF-8"),
        pytest.param(b"I" + pgoutput.number(7, 4) + b"N\0\1t\xff\xff\xff\xff" + b"x" * 20, id="length of 4 GiB"),
        pytest.param(b"T\xff\xff\xff\xff\0" + b"\0" * 8, id="4 billion truncated tables"),
        pytest.param(b"M\1" + b"\0" * 8 + b"p\0\xff\xff\xff\xff" + b"x", id="message of 4 GiB"),
        pytest.param(b"I" + pgoutput.number(7, 4) + b"N\xff\xff" + b"n" * 100, id="fewer values than promised"),
    ],
)
def test_malformed_messages_are_refused(data: bytes) -> None:
    """A malformed message is refused, and no length is trusted before its bytes are there."""
    with pytest.raises(ProtocolError):
        decode_message(data)


def test_the_error_says_how_much_is_missing_and_shows_no_value() -> None:
    """The error has the number of missing bytes and no row value."""
    data = pgoutput.insert(7, ["a-secret-value"])
    with pytest.raises(ProtocolError) as error:
        decode_message(data[:-6])
    assert "6 bytes are missing" in str(error.value)
    assert "secret" not in str(error.value)


def test_malformed_text_is_not_chained_into_the_report() -> None:
    """A UnicodeDecodeError, which has the bytes, is not chained into the report."""
    with pytest.raises(ProtocolError) as error:
        decode_message(b"Y" + pgoutput.number(1, 4) + b"\xff\0x\0")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def _decodes_or_refuses(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assert isinstance(message, Message)


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_give_a_message_or_a_refusal(data: bytes) -> None:
    """Any bytes give a message or a ProtocolError."""
    _decodes_or_refuses(data)


@given(st.sampled_from(b"BCRYIUDTMO"), st.binary(max_size=120))
@settings(max_examples=800, deadline=None)
@example(ord("T"), b"\xff\xff\xff\xff\x00")
@example(ord("R"), b"\0\0\0\1\0\0d\xff\xff")
def test_any_body_behind_a_known_type_gives_a_message_or_a_refusal(first: int, body: bytes) -> None:
    """Any body after a known type byte gives a message or a ProtocolError."""
    _decodes_or_refuses(bytes([first]) + body)


@given(
    st.sampled_from([data for data, _ in MESSAGES.values() if len(data) < 1000]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=800, deadline=None)
def test_a_message_with_bytes_flipped_gives_a_message_or_a_refusal(data: bytes, flips: list[tuple[int, int]]) -> None:
    """A valid message with flipped bytes gives a message or a ProtocolError."""
    damaged = bytearray(data)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    _decodes_or_refuses(bytes(damaged))


_VALUES = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=30)), max_size=12)


def _cells(values: list[Value]) -> pgoutput.Cells:
    return [LEFT_OUT if value is UNCHANGED else value for value in values]


@given(st.integers(0, 2**32 - 1), _VALUES, _VALUES)
@settings(max_examples=300, deadline=None)
def test_rows_of_any_content_survive(oid: int, old: list[Value], new: list[Value]) -> None:
    """Text, NULL and left-out values are decoded unchanged at every place of a row."""
    assert decode_message(pgoutput.insert(oid, _cells(new))) == Insert(oid, new)
    assert decode_message(pgoutput.update(oid, _cells(new), old=_cells(old))) == Update(oid, old, True, new)
    assert decode_message(pgoutput.delete(oid, key=_cells(old))) == Delete(oid, old, False)

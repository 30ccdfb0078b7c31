"""Lines of COPY become the same keys and rows as the same values from the stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.config.tables import Mask, MaskKind
from cdc.encoding.table_encoder import TableEncoder
from cdc.errors import ProtocolError
from cdc.snapshot import copy_rows
from cdc.snapshot.copy_rows import READS_TUPLES, LineEncoder, unescape_copy
from tests.harness.pipeline.event_rules import BOOL, INT8, TEXT, make_table

BYTEA, NUMERIC, TEXT_ARRAY = 17, 1700, 1009
COLUMNS = [
    ("id", INT8, True),
    ("name", TEXT, True),
    ("paid", BOOL, False),
    ("price", NUMERIC, False),
    ("blob", BYTEA, False),
    ("tags", TEXT_ARRAY, False),
    ("note", TEXT, False),
]
# What COPY TO writes with a backslash: PostgreSQL manual, COPY, "Text Format".
_ESCAPES = {0x08: b"\\b", 0x0C: b"\\f", 0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t", 0x0B: b"\\v", 0x5C: b"\\\\"}

_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(str.encode)
_values = st.tuples(
    st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number),
    _text,
    st.sampled_from([b"t", b"f", None]),
    st.sampled_from([b"1.50", b"NaN", b"-0.0001", None]),
    st.one_of(st.none(), st.binary().map(lambda data: b"\\x" + data.hex().encode())),
    st.sampled_from([b'{a,NULL,"b\\\\c"}', b"{}", None]),
    st.one_of(st.none(), _text),
)


@pytest.fixture(autouse=True, scope="module", params=["python", "native"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs for the compiled and the Python encoder."""
    if request.param == "native" and copy_rows.NativeLines is None:
        pytest.skip("not compiled here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_rows, "encode_lines", getattr(copy_rows, f"{request.param}_lines"))
        yield


def line_of(values: tuple[bytes | None, ...]) -> bytes:
    """The row as the server's COPY writes it."""
    fields = [
        rb"\N" if value is None else b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in value) for value in values
    ]
    return b"\t".join(fields) + b"\n"


def tuple_of(values: Sequence[bytes | None]) -> bytes:
    """The row in COPY's binary format."""
    fields = [b"\xff" * 4 if value is None else struct.pack(">i", len(value)) + value for value in values]
    return struct.pack(">h", len(values)) + b"".join(fields)


def encoder(table: TableEncoder) -> LineEncoder:
    return LineEncoder(table, b"<", b">")


@settings(deadline=None)
@given(st.lists(_values, max_size=5))
def test_a_line_gives_the_bytes_that_the_stream_gives(some: list[tuple[bytes | None, ...]]) -> None:
    """For any values a COPY line has the key and the row of the stream."""
    table = make_table(columns=COLUMNS, key=("name", "id"))
    expected = [(table.encode_key(row), b"<" + table.encode_row(row) + b">") for row in some]
    assert encoder(table).encode([line_of(row) for row in some]) == expected
    if READS_TUPLES:
        assert encoder(table).encode_tuples([tuple_of(row) for row in some]) == expected


@settings(deadline=None)
@given(_values)
def test_masks_and_chosen_columns_hold_for_snapshots(row: tuple[bytes | None, ...]) -> None:
    """A snapshot does not read withheld columns, except those needed for a hash."""
    masks = {
        "id": Mask(MaskKind.HASH),
        "name": Mask(MaskKind.HASH),
        "blob": Mask(MaskKind.NULL),
        "note": Mask(MaskKind.FIXED, "%s"),
    }
    table = make_table(columns=COLUMNS, key=("id",), masks=masks, columns_published=("note", "id", "name", "blob"))
    lines = encoder(table)
    assert lines.columns == ("id", "name", "blob", "note")
    chosen = line_of((row[0], row[1], row[4], row[6]))
    assert lines.encode([chosen]) == [(table.encode_key(row), b"<" + table.encode_row(row) + b">")]


@pytest.mark.parametrize("name", ["%", "%d", '"', "\\", "a\nb", "é", "{}", "x'; DROP TABLE t; --", "f0", "line"])
def test_column_names_are_only_names(name: str) -> None:
    """Column names are neither formatted, escaped twice nor executed."""
    table = make_table(columns=[(name, INT8, True), ("other", TEXT, False)], key=(name,))
    ((key, event),) = encoder(table).encode([b"7\tx\n"])
    assert key == table.encode_key([b"7", b"x"])
    assert event == b"<" + table.encode_row([b"7", b"x"]) + b">"


def test_a_table_may_have_a_single_column() -> None:
    """A table with one column is encoded."""
    table = make_table(columns=[("id", INT8, True)])
    assert encoder(table).encode([b"7\n", b"8\n"]) == [(b'{"id":7}', b'<{"id":7}>'), (b'{"id":8}', b'<{"id":8}>')]


@pytest.mark.parametrize("line", [b"1\n", b"1\ta\tb\n", b"1\t\xff\n"])
def test_a_malformed_line_is_refused_without_showing_it(line: bytes) -> None:
    """A malformed line is refused, and the message has no value of the row."""
    with pytest.raises(ProtocolError) as caught:
        encoder(make_table()).encode([line])
    assert "public.orders" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.skipif(not READS_TUPLES, reason="not compiled here")
@settings(deadline=None)
@given(st.integers(0, 20), st.binary(max_size=3))
def test_a_malformed_tuple_is_refused(end: int, more: bytes) -> None:
    """A tuple that is cut or has trailing bytes is refused, without a read outside of it."""
    whole = tuple_of([b"12", None])
    table = make_table(columns=[("id", INT8, True), ("note", TEXT, False)])
    data = whole[:end] + more
    if data == whole:
        assert encoder(table).encode_tuples([data]) == [(b'{"id":12}', b'<{"id":12,"note":null}>')]
        return
    with pytest.raises(ProtocolError):
        encoder(table).encode_tuples([data])


def test_what_copy_escapes_is_undone() -> None:
    """Every escape of COPY is undone exactly once."""
    assert unescape_copy(rb"\b\f\n\r\t\v\\N\\") == b"\b\f\n\r\t\v\\N\\"

"""Capture's hot loop encodes a run of row messages into records; compiled and Python code give the same bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.config.tables import Mask, MaskKind
from cdc.encoding import row_runs
from cdc.encoding.row_runs import Member, RowRun
from cdc.encoding.table_encoder import TableEncoder
from tests.harness.pipeline.event_rules import BOOL, INT8, TEXT, make_table
from tests.harness.postgres.pgoutput import LEFT_OUT, Cells, cells

NUMERIC, BYTEA, FLOAT8, TEXT_ARRAY, DATE, TIMESTAMP, TIMESTAMPTZ = 1700, 17, 701, 1009, 1082, 1114, 1184
WIDE = [
    ("id", INT8, True),
    ("name", TEXT, False),
    ("paid", BOOL, False),
    ("price", NUMERIC, False),
    ("blob", BYTEA, False),
    ("score", FLOAT8, False),
    ("tags", TEXT_ARRAY, False),
    ("born", DATE, False),
    ("made", TIMESTAMP, False),
    ("seen", TIMESTAMPTZ, False),
]
PARTS = [b'{"before":', b',"after":', b',"a":', b',"lsn":', b',"seq":', b',"order":', b',"table_order":']
HEAD = b"w" + (0x1234).to_bytes(8, "big") + bytes(16)

Made = list[tuple[str, bytes, bytes, list[tuple[str, bytes]], int]]
MAKERS: dict[str, Callable[..., RowRun]] = {"python": row_runs.PythonRun}
if row_runs.NativeRun is not None:
    MAKERS["native"] = row_runs.native_run


def runs_of(table: TableEncoder) -> dict[str, RowRun]:
    layout, names = table.layout, [column.name for column in table.relation.columns]
    row, key = ([Member(i, names[i]) for i in indexes] for indexes in (layout.row_indexes, layout.key_indexes))
    return {name: make(layout.encoders, row, key) for name, make in MAKERS.items()}


def inserted(values: bytes) -> bytes:
    """An insert message; `values` is the column count and tuple that `cells` makes."""
    return HEAD + b"I" + bytes(4) + b"N" + values


def updated(old: bytes, new: bytes) -> bytes:
    return HEAD + b"U" + bytes(4) + b"O" + old + b"N" + new


def take(run: RowRun, items: list[bytes], *, pair: bool = False, **more: Any) -> tuple[tuple[int, ...], Made]:
    made: Made = []
    numbers = {"skip_through": -1, "seq": 0, "order": 0, "table_order": 0} | more
    version = b"00000000000000aa."
    ended = run.take(
        items,
        0,
        len(items),
        pair,
        PARTS,
        b"}",
        version,
        "topic",
        lambda *record: made.append(record),  # type: ignore[arg-type]
        *numbers.values(),
    )
    return ended, made


@pytest.fixture(params=MAKERS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_compiled_encoder_exists_where_a_compiler_does() -> None:
    """With a compiler the compiled encoder exists; without it, half of these tests would test nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None or not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert row_runs.NativeRun is not None, "compiled by `pip install --editable .`"
    assert isinstance(make_table().run, row_runs.NativeRun)


def test_a_row_becomes_a_record_with_its_numbers(way: str) -> None:
    """A row becomes a record with key, whole row, LSN and version."""
    run = runs_of(make_table())[way]
    ended, made = take(run, [inserted(cells(["7", "abc"]))] * 2, seq=9, order=8, table_order=2)
    assert ended == (2, 11, 10, 4)
    topic, key, value, headers, partition = made[1]
    assert (topic, key, partition) == ("topic", b'{"id":7}', -1)
    assert headers == [("v", b"00000000000000aa.0000000b")]
    assert json.loads(value) == {
        "before": None,
        "after": {"id": 7, "name": "abc"},
        "a": 0x1234,
        "lsn": 0x1234,
        "seq": 11,
        "order": 10,
        "table_order": 4,
    }


def test_an_empty_run_is_no_row(way: str) -> None:
    """An empty run reads nothing and changes no count."""
    assert take(runs_of(make_table())[way], [], seq=3, order=2, table_order=1) == ((0, 3, 2, 1), [])


def test_rows_that_were_published_before_are_numbered_and_not_made(way: str) -> None:
    """After a restart, published rows are counted and not encoded."""
    ended, made = take(runs_of(make_table())[way], [inserted(cells(["7", "abc"]))] * 3, skip_through=2)
    assert (ended, len(made)) == ((3, 3, 3, 3), 1)
    assert made[0][3] == [("v", b"00000000000000aa.00000003")]


def test_a_number_past_32_bits_is_written_whole(way: str) -> None:
    """A change number above 32 bits is written whole."""
    _, made = take(runs_of(make_table())[way], [inserted(cells(["7", "a"]))], seq=2**32 + 9)
    assert made[0][3] == [("v", b"00000000000000aa.10000000a")]


def test_a_run_ends_at_another_kind_of_message(way: str) -> None:
    """A run ends before a message of another kind."""
    row = cells(["7", "abc"])
    items = [inserted(row), HEAD + b"I" + b"\0\0\0\1" + b"N" + row, inserted(row)]
    assert take(runs_of(make_table())[way], items)[0] == (1, 1, 1, 1)


PLAIN = cells(["7", "abc"])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(cells(["7", LEFT_OUT]), id="left out"),
        pytest.param(cells([None, "a"]), id="key is null"),
        pytest.param(cells(["7"]), id="too short"),
        pytest.param(cells(["7", "a", "b"]), id="too long"),
        pytest.param(cells(["7", b"\xff"]), id="not UTF-8"),
        pytest.param(cells(["7", b"a" * 20 + b"\xed\xa0\x80"]), id="a surrogate"),
        pytest.param(PLAIN + b"x", id="something behind it"),
        pytest.param(b"\0\2t\xff\xff\xff\xffx", id="a length past the end"),
        pytest.param(b"\0\2b\0\0\0\1x", id="binary"),
        pytest.param(b"\0\2", id="nothing"),
    ],
)
def test_what_is_not_a_plain_whole_row_is_left_to_the_decoder(data: bytes, way: str) -> None:
    """A run ends before a row that is not plain and whole, without an exception."""
    assert take(runs_of(make_table())[way], [inserted(data)]) == ((0, 0, 0, 0), [])


def test_a_cut_row_is_never_taken_for_a_whole_one(way: str) -> None:
    """A row cut at any place, in the old or the new tuple, is left to the decoder."""
    table = make_table(columns=WIDE)
    run = runs_of(table)[way]
    row = cells(["7", "abc", "t", "1.5", "\\x00ff", "2.5", "{a,b}", None, None, "2024-01-02 03:04:05+00"])
    for pair, whole in ((False, inserted(row)), (True, updated(row, row))):
        assert take(run, [whole], pair=pair)[0][0] == 1
        for cut in range(len(HEAD), len(whole)):
            assert take(run, [whole[:cut]], pair=pair)[0][0] == 0


def test_a_value_that_its_type_does_not_have_is_left_to_the_decoder(way: str) -> None:
    """A value that is invalid for its type is not published and left to the decoder."""
    table = make_table(columns=[("id", INT8, True), ("paid", BOOL, False), ("at", TIMESTAMPTZ, False)])
    for row in (["1", "yes", None], ["1", "t", "05/06/2024 07:08"], ["1", "t", "2024-05-06 07:08:09+02"]):
        assert take(runs_of(table)[way], [inserted(cells(row))])[0][0] == 0


def test_a_changed_key_is_left_to_the_decoder(way: str) -> None:
    """A key change, which becomes two records, is left to the decoder."""
    run = runs_of(make_table())[way]
    assert take(run, [updated(cells(["7", "a"]), cells(["8", "a"]))], pair=True)[0][0] == 0


def test_a_value_left_out_of_an_update_is_the_old_row_s(way: str) -> None:
    """A value that the new row marks as unchanged is taken from the old row."""
    item = updated(cells(["7", "long"]), cells(["7", LEFT_OUT]))
    (record,) = take(runs_of(make_table())[way], [item], pair=True)[1]
    assert json.loads(record[2])["before"] == json.loads(record[2])["after"] == {"id": 7, "name": "long"}


def test_masks_and_columns_that_are_not_published_hold(way: str) -> None:
    """No record has a part of a masked or unpublished value."""
    table = make_table(
        columns=[("id", INT8, True), ("name", TEXT, False), ("secret", TEXT, False)],
        columns_published=("name", "id"),
        masks={"name": Mask(MaskKind.HASH)},
    )
    (record,) = take(runs_of(table)[way], [inserted(cells(["7", "alice", "hidden"]))])[1]
    assert b"alice" not in record[2]
    assert b"hidden" not in record[2]
    assert list(json.loads(record[2])["after"]) == ["name", "id"]


@pytest.mark.parametrize("name", ["%", "100%", "%d", '"', "\\", "a\nb", "é", "{}", "x'; DROP TABLE t; --"])
def test_column_names_are_only_names(name: str, way: str) -> None:
    """Column names are neither formatted, escaped twice nor executed."""
    table = make_table(columns=[(name, INT8, True), ("other", TEXT, False)], key=(name,))
    (record,) = take(runs_of(table)[way], [inserted(cells(["1", "%s"]))])[1]
    assert json.loads(record[2])["after"] == {name: 1, "other": "%s"}


# -- any row ----------------------------------------------------------------------------------------------------------

_INTEGERS = st.integers(-(2**63), 2**63 - 1).map(lambda value: str(value).encode())
_TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40).map(str.encode)
_FRACTION = st.sampled_from(["", ".1", ".120", ".123456"])
_YEARS = st.datetimes(min_value=datetime(1000, 1, 1))  # noqa: DTZ001 - as Postgres writes them
_MOMENTS = st.tuples(_YEARS, _FRACTION).map(lambda made: f"{made[0]:%Y-%m-%d %H:%M:%S}{made[1]}")
_ODD = st.sampled_from(["infinity", "-infinity", "20240-01-02 03:04:05", "0044-03-15 12:00:00 BC"])
_ROWS = st.tuples(
    _INTEGERS,
    st.none() | _TEXTS,
    st.none() | st.sampled_from([b"t", b"f"]),
    st.none() | st.decimals(allow_nan=False, allow_infinity=False).map(lambda value: f"{value:f}".encode()),
    st.none() | st.binary(max_size=10).map(lambda value: b"\\x" + value.hex().encode()),
    st.none() | st.sampled_from([b"1", b"1.5", b"1e+20", b"NaN", b"-Infinity", b"-3"]),
    st.none() | st.just(b'{a,NULL,"b c"}'),
    st.none() | _MOMENTS.map(lambda text: text[:10].encode()) | st.sampled_from([b"infinity", b"0044-03-15 BC"]),
    st.none() | (_MOMENTS | _ODD).map(str.encode),
    st.none() | (_MOMENTS.map(lambda text: f"{text}+00") | st.just("infinity")).map(str.encode),
)
_WIDE = make_table(columns=WIDE)
_RUNS = runs_of(_WIDE)
_NARROW = runs_of(make_table())


@given(st.lists(_ROWS, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_every_way_gives_the_same_bytes(rows: Sequence[Sequence[bytes | None]]) -> None:
    """The compiled encoder, the Python encoder and the decoder give the same bytes."""
    items = [inserted(cells(row)) for row in rows]
    made = {name: take(run, items) for name, run in _RUNS.items()}
    records = made["python"][1]
    assert all(other == made["python"] for other in made.values())
    for row, (_, key, value, _, _) in zip(rows, records, strict=True):
        assert key == _WIDE.encode_key(row)
        assert b',"after":' + _WIDE.encode_row(row) + b',"a":' in value


@given(_ROWS, _ROWS, st.sets(st.integers(1, len(WIDE) - 1)), st.sets(st.integers(1, len(WIDE) - 1)))
@settings(max_examples=100, deadline=None)
def test_every_way_gives_the_same_bytes_for_an_update(
    old: Sequence[bytes | None], new: Sequence[bytes | None], kept: set[int], left_out: set[int]
) -> None:
    """All encoders agree for values of the old row that stayed, were repeated or were left out."""
    row = [old[i] if i == 0 or i in kept | left_out else value for i, value in enumerate(new)]
    sent: Cells = [LEFT_OUT if i in left_out else value for i, value in enumerate(row)]
    made = {name: take(run, [updated(cells(old), cells(sent))], pair=True) for name, run in _RUNS.items()}
    (_, _, value, _, _) = made["python"][1][0]
    assert all(other == made["python"] for other in made.values())
    assert value.startswith(b'{"before":' + _WIDE.encode_row(old) + b',"after":' + _WIDE.encode_row(row) + b',"a":')


@given(st.binary(max_size=60), st.booleans())
@settings(max_examples=200, deadline=None)
def test_garbage_is_never_a_row_for_one_of_them_only(garbage: bytes, pair: bool) -> None:
    """Arbitrary bytes end the run for every encoder alike, and do not crash."""
    items = [HEAD + (b"U" if pair else b"I") + bytes(4) + (b"O" if pair else b"N") + b"\0\x0a" + garbage]
    made = [take(run, items, pair=pair) for run in _RUNS.values()]
    assert all(other == made[0] for other in made)


@given(st.integers(0, 120), st.sampled_from([b'"', b"\\", b"\n", b"\x01", b"\x1f", b"\x7f", "é".encode(), b"/"]))
@settings(max_examples=100, deadline=None)
def test_json_escapes_are_written_at_every_position(at: int, byte: bytes) -> None:
    """Each encoder escapes as orjson does at every position; the compiled one reads eight bytes at once."""
    text = b"a" * at + byte + b"b" * (at % 11)
    for run in _NARROW.values():
        (record,) = take(run, [inserted(cells(["1", text]))])[1]
        assert b'"name":' + orjson.dumps(text.decode()) + b"}" in record[2]


# -- large values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", range(9))
@pytest.mark.parametrize("unit", ["a", "é", "表", "🐘", "a\n", '"\x01é'])
def test_long_text_is_the_same_wherever_its_slices_end(unit: str, shift: int) -> None:
    """Long text, which the compiled encoder takes in slices, is never split within a character."""
    text = "x" * shift + unit * (200_000 // len(unit.encode()))
    made = [take(run, [inserted(cells(["1", text]))])[1] for run in _NARROW.values()]
    for ((_, _, value, _, _),) in made:
        assert b'"name":' + orjson.dumps(text) + b"}" in value


@pytest.mark.parametrize("at", [3, 65_535, 65_536, 65_537, 131_000, 199_999])
@pytest.mark.parametrize("wrong", [b"\xff", b"\x80\x80\x80\x80\x80", b"\xf0\x9f", b"\xed\xa0\x80"])
def test_long_text_that_is_not_utf_8_is_left_to_the_decoder(at: int, wrong: bytes, way: str) -> None:
    """Invalid UTF-8 at any place, also across two slices, is left to the decoder."""
    text = b"x" * at + wrong + b"x" * (200_000 - at)
    assert take(_NARROW[way], [inserted(cells(["1", text]))]) == ((0, 0, 0, 0), [])


_LARGE_ROW = """
import resource
from tests.unit.cdc.encoding.test_row_run import HEAD, cells, inserted, make_table, runs_of, take


def memory(which):  # 0: address space, 1: resident
    with open("/proc/self/statm") as file:
        return int(file.read().split()[which]) * resource.getpagesize()


run = runs_of(make_table())["native"]
small = inserted(cells(["1", "small"]))
text = b'some text, "quoted" now and then\\n' * (50_000_000 // 34)
item = inserted(cells(["2", text]))
most = memory(0) + 250_000_000
resource.setrlimit(resource.RLIMIT_AS, (most, most))
before = memory(1)
_, made = take(run, [small, item, small])
assert [len(value) > 50_000_000 for _, _, value, _, _ in made] == [False, True, False]
made.clear()
assert memory(1) - before < 16_000_000, memory(1) - before
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is counted as Linux counts it")
@pytest.mark.skipif(row_runs.NativeRun is None, reason="nothing is compiled here")
def test_a_large_value_takes_little_more_memory_than_its_json_and_gives_it_back() -> None:
    """A value of 50 MB needs at most 250 MB, of which 55 are the event, and the memory is released."""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", _LARGE_ROW], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

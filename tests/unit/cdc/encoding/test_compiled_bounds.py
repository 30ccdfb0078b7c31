"""The compiled loops check every argument before they use it: a wrong one raises and does not crash.

The cases run in another process, since a crash would end the test run.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from cdc.encoding import row_runs

_CASES = """
import sys
from cdc.kafka.direct_produce import RowSender
from cdc.audit.native_records import NativeRecords, digests
from cdc.encoding.native_rows import NativeLines, NativeRun

PARTS = [b""] * 7
VERSION = b"00000000000000aa."
COLUMNS = [(1, 0)], [bytes], [(0, b"{")], [(0, b"{")]
HEAD = b"w" + bytes(24)
ROW = HEAD + b"I" + bytes(4) + b"N" + b"\\0\\1" + b"t\\0\\0\\0\\0017"


def take(items, at, end, *, parts=PARTS, ending=b"}", emit=lambda *_: None, columns=COLUMNS):
    return NativeRun(*columns).take(items, at, end, False, parts, ending, VERSION, "t", emit, -1, 0, 0, 0)


def shrinking():
    items = [ROW] * 1000
    return take(items, 0, len(items), emit=lambda *_: items.clear())[0]


def records(data, number):
    return NativeRecords(exact=True, by_id=False, one_column=True, seed=1).take(data, number, 0, 0, 9)


def sent_rows(*rows):
    RowSender().send_rows("t", rows, b"v")


CASES = {
    "a row": lambda: take([ROW], 0, 1),
    "an empty list": lambda: take([], 0, 0),
    "nothing to take": lambda: take([ROW], 1, 1),
    "an end before the beginning": lambda: take([ROW], 1, 0),
    "a beginning before the list": lambda: take([ROW], -5, 1),
    "an end behind the list": lambda: take([ROW], 0, 2),
    "a beginning behind the list": lambda: take([ROW], 9, 9),
    "an item that is none": lambda: take([ROW, None], 0, 2)[0],
    "a first item that is none": lambda: take([None], 0, 1),
    "a list that becomes shorter": shrinking,
    "no parts": lambda: take([ROW], 0, 1, parts=[]),
    "too few parts": lambda: take([ROW], 0, 1, parts=[b""] * 6),
    "a part that is none": lambda: take([ROW], 0, 1, parts=[None] * 7),
    "an encoder that gives none": lambda: take([ROW], 0, 1, columns=([(9, 0)], [lambda _: None], *COLUMNS[2:])),
    "a column without what stands before it": lambda: NativeRun([(1, 0)], [bytes], [(0, None)], []),
    "a column that is not there": lambda: NativeRun([(1, 0)], [bytes], [(1, b"")], []),
    "lines": lambda: NativeLines(*COLUMNS, b"", b"").encode([b"7\\n"]),
    "a line that is none": lambda: NativeLines(*COLUMNS, b"", b"").encode([None]),
    "an empty line": lambda: NativeLines(*COLUMNS, b"", b"").encode([b""]),
    "a tuple that is none": lambda: NativeLines(*COLUMNS, b"", b"").encode([None], True),
    "an empty tuple": lambda: NativeLines(*COLUMNS, b"", b"").encode([b""], True),
    "a head that is none": lambda: NativeLines(*COLUMNS, None, b"").encode([b"7\\n"]),
    "records that are not there": lambda: records(b"", 1),
    "more records than bytes": lambda: records(b"\\0" * 8, 1 << 58),
    "fewer records than none": lambda: records(b"", -1),
    "a digest of none": lambda: digests([None], 1),
    "a record without a key": lambda: sent_rows((None, b"")),
    "a record without an event": lambda: sent_rows((b"", None)),
}
for name, case in CASES.items():
    print(name, end=": ", flush=True)
    try:
        print(case(), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
_EXPECTED = """
a row: (1, 1, 1, 1)
an empty list: (0, 0, 0, 0)
nothing to take: (1, 0, 0, 0)
an end before the beginning: IndexError
a beginning before the list: IndexError
an end behind the list: IndexError
a beginning behind the list: IndexError
an item that is none: TypeError
a first item that is none: TypeError
a list that becomes shorter: 1
no parts: ValueError
too few parts: ValueError
a part that is none: TypeError
an encoder that gives none: (0, 0, 0, 0)
a column without what stands before it: TypeError
a column that is not there: ValueError
lines: [(b'{7}', b'{7}')]
a line that is none: TypeError
an empty line: ValueError
a tuple that is none: TypeError
an empty tuple: ValueError
a head that is none: TypeError
records that are not there: ValueError
more records than bytes: ValueError
fewer records than none: []
a digest of none: TypeError
a record without a key: TypeError
a record without an event: TypeError
"""


@pytest.mark.skipif(row_runs.NativeRun is None, reason="nothing is compiled here")
def test_wrong_arguments_raise_and_do_not_crash() -> None:
    """Empty lists, positions out of range, None for bytes and too large counts raise an exception."""
    done = subprocess.run([sys.executable, "-c", _CASES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == (_EXPECTED.strip(), 0), done.stderr

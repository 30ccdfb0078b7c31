"""Invalid bytes on the replication connection cause a clear error or a retry, and never a hang, a crash or a wrong
record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from urllib.parse import urlsplit

import pytest

from tests.harness.network.tampering_proxy import Tamper, TamperingProxy, copy_data, in_message
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.database import Database

# What a row's message becomes, all of it impossible: nothing may be published from it. The row is (int, text, bool).
# The decoder's own tests have many more; these show what becomes of the process.
IMPOSSIBLE: dict[str, Callable[[bytes], bytes]] = {
    "cut in a value": lambda row: row[:-3],
    "a byte too many": lambda row: row + b"\0",
    "an unknown type": lambda row: b"?" + row[1:],
    "a value longer than the message": lambda row: row[:9] + b"\xff\xff\xff\xff" + row[13:],
    "a boolean that is none": lambda row: row[:-1] + b"x",
    "text that is no UTF-8": lambda row: row.replace(b"secret", b"secr\xff\xfe"),
}

# The same for the other kinds of messages: what it becomes, after a statement that makes one.
_UPDATE, _DELETE = "UPDATE t SET v = v || '.'", "DELETE FROM t WHERE id = (SELECT max(id) FROM t)"
_WHOLE, _TRUNCATE = "UPDATE whole SET v = v || '.'", "TRUNCATE whole; INSERT INTO whole VALUES (1, 'secret', true)"
UNKNOWN_OID = b"\0\0\0\1"
IMPOSSIBLE_OTHERS: dict[str, tuple[str, bytes, Callable[[bytes], bytes]]] = {
    "an update cut in a value": (_UPDATE, b"U", lambda row: row[:-3]),
    "an update and a byte too many": (_UPDATE, b"U", lambda row: row + b"\0"),
    "an update without a new row": (_UPDATE, b"U", lambda row: row[:5] + b"K" + row[6:]),
    "an update of an unknown table": (_UPDATE, b"U", lambda row: row[:1] + UNKNOWN_OID + row[5:]),
    "an old row cut": (_WHOLE, b"U", lambda row: row[:14]),
    "an old row with a value longer than the message": (
        _WHOLE,
        b"U",
        lambda row: row[:9] + b"\x7f\xff\xff\xff" + row[13:],
    ),
    "a delete cut in its key": (_DELETE, b"D", lambda row: row[:10]),
    "a delete of a new row": (_DELETE, b"D", lambda row: row[:5] + b"N" + row[6:]),
    "a delete without a key": (_DELETE, b"D", lambda row: row[:8] + b"nnn"),
    "a delete with fewer columns": (_DELETE, b"D", lambda row: row[:6] + b"\0\1" + row[8:-2]),
    "a delete from an unknown table": (_DELETE, b"D", lambda row: row[:1] + UNKNOWN_OID + row[5:]),
    "columns cut short": (_UPDATE, b"R", lambda relation: relation[:-3]),
    "columns and a byte too many": (_UPDATE, b"R", lambda relation: relation + b"\0"),
    "more columns than there are": (_UPDATE, b"R", lambda relation: relation.replace(b"\0\3\1id", b"\x7f\xff\1id")),
    "an unknown identity": (_UPDATE, b"R", lambda relation: relation.replace(b"d\0\3\1id", b"x\0\3\1id")),
    "a name that is no UTF-8": (_UPDATE, b"R", lambda relation: relation.replace(b"public", b"publ\xff\xfe")),
    "columns of an unknown table": (_UPDATE, b"R", lambda relation: relation[:1] + UNKNOWN_OID + relation[5:]),
    "a truncate cut short": (_TRUNCATE, b"T", lambda message: message[:-3]),
    "a truncate of more tables than there are": (_TRUNCATE, b"T", lambda message: b"T\0\0\0\5" + message[5:]),
    "a truncate and a byte too many": (_TRUNCATE, b"T", lambda message: message + b"\0"),
    "a truncate of an unknown table": (_TRUNCATE, b"T", lambda message: message[:6] + UNKNOWN_OID),
}

# What goes wrong around pgoutput, in the replication protocol or beneath it: a broken connection, so another try.
BROKEN: dict[str, Tamper] = {
    "a header cut short": lambda content: copy_data(content[:9]),
    "an unknown replication message": lambda content: copy_data(b"?" + content[1:]),
    "no message at all": lambda content: b"\xff" * len(content),
    "a length that is negative": lambda content: b"d\xff\xff\xff\xff" + content,
    "a length past everything": lambda content: b"d\x7f\xff\xff\xf0" + content,
    "a length that could be": lambda content: b"d\x10\0\0\0" + content,
}


@pytest.fixture
def proxy(database: Database) -> Iterator[TamperingProxy]:
    server = urlsplit(database.dsn)
    proxy = TamperingProxy(server.hostname or "", server.port or 0)
    yield proxy
    proxy.close()


def test_an_impossible_row_message_is_refused_with_a_clear_error(
    make_pipeline: MakePipeline, proxy: TamperingProxy
) -> None:
    """Exit code 3 and one line that names the error without row values; the next start continues from there."""
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, b bool)")
    pipeline.start().kill()
    problems = []
    for number, (name, change) in enumerate(IMPOSSIBLE.items()):
        pipeline.database.execute(
            f"INSERT INTO t VALUES ({number % 10}, 'secret', true) ON CONFLICT (id) DO UPDATE SET v = t.v || '{number}'"
        )
        proxy.tamper_next(in_message(change))
        capture = pipeline.launch()
        code = capture.wait(60)
        line = re.findall("tailrace: error: (.*)", capture.errors)
        if code != 3 or not line or "nexpected" in capture.errors or "secret" in line[0]:
            problems.append(f"{name}: exit code {code}, {line}")
    assert not problems, "\n".join(problems)
    capture = pipeline.start()
    pipeline.assert_same("t", while_running=capture)


def test_an_impossible_message_of_any_other_kind_is_refused_with_a_clear_error(
    make_pipeline: MakePipeline, proxy: TamperingProxy
) -> None:
    """Invalid updates, deletes, relations and truncates are refused as invalid inserts are."""
    pipeline = make_pipeline(proxy=proxy)
    database = pipeline.database
    for name in ("t", "whole"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, b bool)")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT n, 'secret', true FROM generate_series(1, 30) n")
    database.execute("INSERT INTO whole VALUES (1, 'secret', true)")
    pipeline.assert_same("t", "whole", while_running=capture)
    capture.stop()
    problems = []
    for (statement, kind), cases in groupby(IMPOSSIBLE_OTHERS.items(), key=lambda case: case[1][:2]):
        database.execute(statement)
        for name, (_, _, change) in cases:
            proxy.tamper_next(in_message(change), kind)
            capture = pipeline.launch()
            code = capture.wait(60)
            line = re.findall("tailrace: error: (.*)", capture.errors)
            if code != 3 or not line or "nexpected" in capture.errors or "secret" in line[0]:
                problems.append(f"{name}: exit code {code}, {line}")
        capture = pipeline.start()  # what was refused is there again, as it was meant
        pipeline.assert_same("t", "whole", while_running=capture)
        capture.stop()
    assert not problems, "\n".join(problems)


def test_a_broken_replication_protocol_is_retried(make_pipeline: MakePipeline, proxy: TamperingProxy) -> None:
    """Capture closes the connection, logs the reason and reconnects; nothing is lost or published twice."""
    pipeline = make_pipeline(proxy=proxy)
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    for name, tamper in BROKEN.items():
        retries = capture.errors.count('"retrying"')
        proxy.tamper_next(tamper)
        database.execute("INSERT INTO t SELECT max(id) + 1, 'text' FROM (SELECT id FROM t UNION ALL SELECT 0) AS ids")
        capture.wait_for(lambda: proxy.tampered, 60, f"{name} to be sent")
        capture.wait_for(lambda: capture.errors.count('"retrying"') > retries, 60, f"another try after {name}")  # noqa: B023
        pipeline.fence(while_running=capture)
    pipeline.assert_same("t", while_running=capture)
    assert '"level": "error"' not in capture.errors

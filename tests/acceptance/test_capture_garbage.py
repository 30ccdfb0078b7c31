"""Garbage on the replication connection: a clear error or another try; never a hang, a crash or a wrong record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.harness.database import Database
from tests.harness.pipeline import MakePipeline
from tests.harness.tampering import Tamper, TamperingProxy, copy_data, in_row_message

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

# What goes wrong around pgoutput, in the replication protocol or beneath it: a broken connection, so another try.
BROKEN: dict[str, Tamper] = {
    "a header cut short": lambda content: copy_data(content[:9]),
    "an unknown replication message": lambda content: copy_data(b"?" + content[1:]),
    "no message at all": lambda content: b"\xff" * len(content),
    "a length that is negative": lambda content: b"d\xff\xff\xff\xff" + content,
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
    """Exit code 3, one line that says what is wrong and nothing of the row; the next start goes on from there."""
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, b bool)")
    pipeline.start().kill()
    problems = []
    for number, (name, change) in enumerate(IMPOSSIBLE.items()):
        pipeline.database.execute(
            f"INSERT INTO t VALUES ({number % 10}, 'secret', true) ON CONFLICT (id) DO UPDATE SET v = t.v || '{number}'"
        )
        proxy.tamper_next(in_row_message(change))
        capture = pipeline.launch()
        code = capture.wait(60)
        line = re.findall("tailrace: error: (.*)", capture.errors)
        if code != 3 or not line or "nexpected" in capture.errors or "secret" in line[0]:
            problems.append(f"{name}: exit code {code}, {line}")
    assert not problems, "\n".join(problems)
    capture = pipeline.start()
    pipeline.assert_same("t", while_running=capture)


def test_a_broken_replication_protocol_is_tried_again(make_pipeline: MakePipeline, proxy: TamperingProxy) -> None:
    """The connection is given up, the reason logged, and nothing is lost or published twice."""
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

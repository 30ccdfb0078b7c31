"""The user's logical messages arrive in a topic per name, in commit order, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cdc.names import Control, message_topic
from deploy.stack import Stack
from tests.harness.kafka.raw_records import RawRecord, read_raw, topics_under
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline


def _messages(pipeline: Pipeline, name: str) -> list[RawRecord]:
    return read_raw(pipeline.bootstrap, message_topic(pipeline.prefix, name))


def _contents(pipeline: Pipeline, name: str) -> list[str]:
    return [record.value.decode() for record in _messages(pipeline, name)]


def test_messages_arrive_in_commit_order(make_pipeline: MakePipeline) -> None:
    """Messages arrive in commit order with their bytes unchanged, and rolled-back messages never arrive."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    slow, emit = database.connect(autocommit=False), "SELECT pg_logical_emit_message(true, 'orders.events', %s)"
    slow.execute(emit, ["slow 1"])
    database.execute(emit, ["quick"])
    slow.execute("INSERT INTO t VALUES (1, 'between')")
    slow.execute(emit, ["slow 2"])
    slow.execute("SAVEPOINT a")
    slow.execute(emit, ["rolled back to the savepoint"])
    slow.execute("ROLLBACK TO a")
    slow.commit()
    slow.execute(emit, ["rolled back"])
    slow.rollback()
    database.execute("SELECT pg_logical_emit_message(true, 'orders.events', '\\x00ff80'::bytea)")
    pipeline.assert_same("t", while_running=capture)
    assert message_topic(pipeline.prefix, "orders.events") == f"{pipeline.prefix}.orders-2eevents"
    found = _messages(pipeline, "orders.events")
    assert [record.value for record in found] == [b"quick", b"slow 1", b"slow 2", b"\x00\xff\x80"]
    assert len({record.key for record in found}) == 4
    assert all(record.headers["transactional"] == b"true" for record in found)
    assert [record.headers["v"] for record in found] == sorted(record.headers["v"] for record in found)


def test_messages_outside_transactions_are_marked(make_pipeline: MakePipeline) -> None:
    """Non-transactional messages arrive at once and carry a header, even if the transaction that sent them rolls
    back.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    other = database.connect(autocommit=False)
    other.execute("INSERT INTO t VALUES (1, 'never')")
    other.execute("SELECT pg_logical_emit_message(false, 'audit', 'tried')")
    other.rollback()
    database.execute("SELECT pg_logical_emit_message(true, 'audit', 'done')")
    pipeline.assert_same("t", while_running=capture)
    found = [(record.value, record.headers["transactional"]) for record in _messages(pipeline, "audit")]
    assert found == [(b"tried", b"false"), (b"done", b"true")]


def test_messages_exactly_once_across_kills(make_pipeline: MakePipeline) -> None:
    """With capture killed repeatedly, also inside a long transaction, each message arrives once and each name in
    order.
    """
    pipeline = make_pipeline(capture={"transaction_events": 50})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    expected: Counter[str] = Counter()
    in_order: list[str] = []
    for session in range(3):
        for number in range(20):
            text = f"{session}.{number}"
            database.execute(
                "BEGIN; SELECT pg_logical_emit_message(true, 'kept', %(t)s || 'a');"
                "SELECT pg_logical_emit_message(false, 'loose', %(t)s);"
                "SELECT pg_logical_emit_message(true, 'kept', %(t)s || 'b'); COMMIT".replace("%(t)s", f"'{text}'")
            )
            in_order += [f"{text}a", f"{text}b"]
            expected[text] += 1
        first = session * 1000
        already = pipeline.rows_published("t")
        database.execute(  # a row, a message, a row, a message …
            f"WITH sent AS (INSERT INTO t SELECT n, 'x' FROM generate_series({first}, {first + 499}) n RETURNING id)"
            " SELECT pg_logical_emit_message(true, 'kept', id::text) FROM sent"
        )
        database.execute(
            "DO $$ BEGIN FOR n IN 1..200 LOOP"
            f" PERFORM pg_logical_emit_message(true, 'kept', 'm{session}.' || n);"
            f" UPDATE t SET v = n WHERE id = {first};"
            " END LOOP; END $$"
        )
        in_order += [str(first + n) for n in range(500)] + [f"m{session}.{n}" for n in range(1, 201)]
        capture.wait_for(lambda: pipeline.rows_published("t") > already, 60, "a part of it")  # noqa: B023
        capture.kill()
        capture = pipeline.start()
    pipeline.assert_same("t", while_running=capture)
    assert Counter(_contents(pipeline, "loose")) == expected
    kept = _contents(pipeline, "kept")
    assert [text for text, count in Counter(kept).items() if count > 1] == []
    assert kept == in_order


def test_messages_exactly_once_where_a_replay_is_killed_too(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """When capture is killed again during a replay, the messages that were already published are not published
    again.
    """
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy, capture={"transaction_events": 50})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    proxy.limit(400_000)  # slow enough for all of this to happen inside it
    database.execute(
        "WITH sent AS (INSERT INTO t SELECT n, 'x' FROM generate_series(1, 12000) n RETURNING id)"
        " SELECT pg_logical_emit_message(true, 'kept', id::text) FROM sent"
    )
    capture.wait_for(lambda: pipeline.rows_published("t") > 3000, what="a part of it")
    proxy.limit(100_000)
    for _ in range(2):
        capture.kill()
        assert pipeline.rows_published("t") < 12_000, "it went through: no test"
        known = len(pipeline.progress_records())
        capture = pipeline.start()
        capture.wait_for(lambda: len(pipeline.progress_records()) > known, what="more progress")  # noqa: B023
    capture.kill()
    assert pipeline.rows_published("t") < 12_000, "it went through: no test"
    proxy.restore()
    capture = pipeline.start()
    pipeline.assert_same("t", while_running=capture)
    assert _contents(pipeline, "kept") == [str(n) for n in range(1, 12_001)]


def test_messages_can_be_turned_off(make_pipeline: MakePipeline) -> None:
    """With `[source] messages = false` messages make no topic, and row changes flow."""
    pipeline = make_pipeline(source={"messages": False})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute(
        "SELECT pg_logical_emit_message(true, 'orders', 'x'), pg_logical_emit_message(false, 'orders', 'x')"
    )
    database.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline.assert_same("t", while_running=capture)
    names = {name.removeprefix(f"{pipeline.prefix}.") for name in topics_under(pipeline.bootstrap, pipeline.prefix)}
    assert names == {"public.t", *(topic.value for topic in Control)}


def test_no_message_reaches_a_topic_of_another_kind(make_pipeline: MakePipeline) -> None:
    """A message named like a control topic, a table or Tailrace, or with an empty or long name, gets a message
    topic.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    names = ["__progress", "_x", "public.t", "é/ü", "x" * 300, "UPPER", "a b", "-", "..", "", "public_t"]
    for name in names:
        database.execute("SELECT pg_logical_emit_message(true, %s, 'mine')", [name])
        database.execute("SELECT pg_logical_emit_message(false, %s, 'loose')", [name])
    database.execute("SELECT pg_logical_emit_message(true, 'tailrace.else', 'must-not-be-seen')")
    pipeline.assert_same("t", while_running=capture)
    for name in names:
        assert _contents(pipeline, name) == ["mine", "loose"], name
    own = ("__progress", "__schema", "__parked", "__positions", "public.t")
    for record in read_raw(pipeline.bootstrap, *(f"{pipeline.prefix}.{name}" for name in own)):
        assert not record.holds(b"mine")
    everything = read_raw(pipeline.bootstrap, *topics_under(pipeline.bootstrap, pipeline.prefix))
    assert not any(record.holds(b"must-not-be-seen") for record in everything)


def test_a_message_too_big_is_parked(make_pipeline: MakePipeline) -> None:
    """A message over the size limit is parked, and the next message is published."""
    pipeline = make_pipeline(kafka={"max_message_bytes": 100_000})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("SELECT pg_logical_emit_message(true, 'big', repeat('x', 200000))")
    database.execute("SELECT pg_logical_emit_message(true, 'big', 'small')")
    pipeline.fence(while_running=capture)
    assert _contents(pipeline, "big") == ["small"]
    (parked,) = read_raw(pipeline.bootstrap, f"{pipeline.prefix}.__parked")
    assert message_topic(pipeline.prefix, "big").encode() in parked.value

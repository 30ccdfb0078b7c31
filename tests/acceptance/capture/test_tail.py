"""`tailrace tail` as a user runs it."""

from __future__ import annotations

import json

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually


def test_tail_shows_what_the_topic_holds(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """`--from-beginning --no-follow` prints every committed record once, and ends by itself."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline.database.execute("UPDATE t SET v = 'b'")
    pipeline.database.execute("DELETE FROM t")
    pipeline.fence()
    arguments = ("tail", "public.t", "--config", str(pipeline.config), "--from-beginning", "--no-follow")

    lines = tailrace(*arguments)
    lines.expect_exit(0)
    records = tailrace(*arguments, "--json")
    records.expect_exit(0)

    assert [line.split("  ", 1)[1] for line in lines.output.splitlines()] == [
        '+ {"id":1} {"id":1,"v":"a"}',
        '~ {"id":1} {"id":1,"v":"b"}',
        '- {"id":1}',
        'x {"id":1} (tombstone)',
    ]
    shown = [json.loads(line) for line in records.output.splitlines()]
    assert [record["version"] for record in shown] == [line.split(" ")[0] for line in lines.output.splitlines()]
    assert [record["value"] and record["value"]["op"] for record in shown] == ["c", "u", "d", None]


def test_tail_of_a_table_without_a_topic(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """A table without a topic gives one line with the remedy and exit code 2."""
    pipeline = make_pipeline()
    process = tailrace("tail", "public.nothing", "--config", str(pipeline.config))
    process.expect_exit(2)
    assert f"There is no topic {pipeline.topic('nothing')}." in process.errors


def test_a_masked_column_is_not_shown(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """`tail` does not show the original value of a masked column."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, email text)")
    with pipeline.config.open("a") as config:
        config.write('[mask]\n"public.t.email" = "hash"\n')
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (1, 'somebody@example.com')")
    pipeline.fence(while_running=capture)
    process = tailrace(
        "tail", "public.t", "--config", str(pipeline.config), "--json", "--from-beginning", "--no-follow"
    )
    process.expect_exit(0)
    (shown,) = [json.loads(line) for line in process.output.splitlines()]
    assert shown["value"]["after"]["id"] == 1
    assert shown["value"]["after"]["email"]
    assert "somebody" not in process.output + process.errors + capture.errors


def test_tail_follows_and_stops_after_the_limit(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """Without options `tail` starts with the next record; `--limit` and Ctrl-C end it."""
    pipeline = make_pipeline(kafka={"partitions": 1})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (0, 'before')")
    pipeline.fence(while_running=capture)
    arguments = ("tail", "public.t", "--config", str(pipeline.config))
    limited, follower = tailrace(*arguments, "--limit", "3", "--json"), tailrace(*arguments)

    # A reader does not report that it has reached the end: write until it prints something.
    def write_until_seen() -> bool:
        database.execute("UPDATE t SET v = 'new' WHERE id = 0")
        return bool(limited.output) and bool(follower.output)

    eventually(write_until_seen, 60, "the first change to be shown")
    database.execute("TRUNCATE t; INSERT INTO t VALUES (7, 'é'); INSERT INTO t VALUES (8, NULL)")
    follower.wait_for_line(r'\+ \{"id":8\} \{"id":8,"v":null\}')
    limited.expect_exit(0)
    shown = [json.loads(line) for line in limited.output.splitlines()]
    assert len(shown) == 3
    assert all(record["topic"] == pipeline.topic("t") for record in shown)
    assert not any(record["value"]["after"] == {"id": 0, "v": "before"} for record in shown)
    assert shown[0]["offset"] < shown[1]["offset"] < shown[2]["offset"]

    follower.interrupt()
    follower.expect_exit(130)
    signs = [line.split("  ", 1)[1][0] for line in follower.output.splitlines()]
    assert signs[-3:] == ["!", "+", "+"]


def test_tail_shows_committed_changes_only(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """`tail` shows no record of an open Kafka transaction, and then the whole source transaction."""
    pipeline = make_pipeline(kafka={"partitions": 1})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT generate_series(1, 500)")
    pipeline.fence(while_running=capture)
    process = tailrace("tail", "public.t", "--config", str(pipeline.config), "--from-beginning", "--no-follow")
    process.expect_exit(0)
    assert len(process.output.splitlines()) == 500


def test_tail_of_an_impossible_table_name(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """An impossible table name gives exit code 2 and one line."""
    pipeline = make_pipeline()
    for name in ("public.*", "orders", "public.Orders"):
        process = tailrace("tail", name, "--config", str(pipeline.config))
        process.expect_exit(2)
        assert name in process.errors

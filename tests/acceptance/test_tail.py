"""`tailrace tail`, and what capture says about tables that it does not capture."""

from __future__ import annotations

import json

from tests.harness.pipeline import MakePipeline
from tests.harness.process import StartProcess


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
    """Said in one line with the remedy, exit code 2."""
    pipeline = make_pipeline()
    process = tailrace("tail", "public.nothing", "--config", str(pipeline.config))
    process.expect_exit(2)
    assert f"There is no topic {pipeline.topic('nothing')}." in process.errors


def test_table_made_later_is_warned_of(make_pipeline: MakePipeline) -> None:
    """The tables are chosen at the first start; one that came later is not missed in silence."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = pipeline.start()
    first.terminate()
    first.expect_exit(0)
    pipeline.database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    second = pipeline.start()
    assert '"table": "public.later"' in second.errors
    assert '"event": "table_not_captured"' in second.errors
    assert '"table": "public.t"' not in second.errors


def test_mask_is_not_ignored(make_pipeline: MakePipeline) -> None:
    """A column that should leave the database only masked does not leave it as it is."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, email text)")
    with pipeline.config.open("a") as config:
        config.write('[mask]\n"public.t.email" = "hash"\n')
    process = pipeline.launch()
    process.expect_exit(2)
    assert "[mask]" in process.errors

"""`tailrace remove` removes a table or the whole capture, keeps capture consistent and leaves no slot behind."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import structlog
from psycopg import sql

from cdc import cli
from cdc.names import Control, control_topic
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import create_topic, delete_topic, list_topics
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually

_TABLES = "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text)"
_ONLY_A = {"tables": ["public.a"]}


@dataclass(frozen=True)
class _Said:
    stdout: str
    stderr: str


def _remove(pipeline: Pipeline, *arguments: str, code: int, answer: str = "") -> _Said:
    """Run `tailrace remove` in this process; only interrupted runs need a process of their own."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdout", out), ("stderr", err), ("stdin", io.StringIO(answer))):
            patch.setattr(sys, name, stream)
        found = cli.main(["remove", "--config", str(pipeline.config), *arguments])
    assert found == code, f"exit code {found}\n{out.getvalue()}\n{err.getvalue()}"
    return _Said(out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


def _stop(capture: Process) -> None:
    capture.terminate()
    capture.expect_exit(0)


def _stopped(make_pipeline: MakePipeline, **settings: Any) -> Pipeline:
    """Tables a and b, a captured row in each, capture stopped with SIGTERM."""
    pipeline = make_pipeline(**settings)
    pipeline.database.execute(_TABLES)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 'x')")
    pipeline.fence(while_running=capture)
    _stop(capture)
    eventually(lambda: pipeline.slot().pid is None, what="the slot to be free")
    return pipeline


def _wait_for_heartbeat(pipeline: Pipeline) -> None:
    """Wait for the next heartbeat's record on the topic of positions."""
    topic = control_topic(pipeline.prefix, Control.POSITIONS)
    before = len(read_topic(pipeline.bootstrap, topic))
    eventually(lambda: len(read_topic(pipeline.bootstrap, topic)) > before, what="a heartbeat")


def _slots(pipeline: Pipeline) -> list[str]:
    rows = pipeline.database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    return [name for (name,) in rows]


def _published(pipeline: Pipeline) -> list[str]:
    rows = pipeline.database.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1")
    return [name for (name,) in rows]


def _ours(pipeline: Pipeline) -> set[str]:
    return {name for name in list_topics(pipeline.bootstrap) if name.startswith(f"{pipeline.prefix}.")}


def test_a_table_goes_and_capture_goes_on(make_pipeline: MakePipeline) -> None:
    """Changes before the removal are published and later ones are not; the other table and the topic stay."""
    pipeline = _stopped(make_pipeline)
    pipeline.database.execute("INSERT INTO b VALUES (2, 'before'); INSERT INTO a VALUES (2, 'before')")
    selected = _remove(pipeline, "--table", "public.b", "--yes", code=3)
    assert "tailrace.toml still selects public.b" in selected.stderr
    assert _published(pipeline) == ["a", "b"]
    pipeline.configure(source=_ONLY_A)
    done = _remove(pipeline, "--table", "public.b", "--yes", code=0)
    assert f"Left: topic {pipeline.topic('b')}" in done.stdout
    assert _published(pipeline) == ["a"]
    pipeline.database.execute("INSERT INTO b VALUES (3, 'after'); INSERT INTO a VALUES (3, 'after')")
    capture = pipeline.start()
    pipeline.assert_same("a", while_running=capture)
    for _ in range(3):  # a table that is gone from the source would have its topic emptied by now
        _wait_for_heartbeat(pipeline)
    assert [record.key for record in pipeline.records("b")] == [b'{"id":1}', b'{"id":2}']
    assert _published(pipeline) == ["a"]
    _stop(capture)
    done = _remove(pipeline, "--table", "public.b", "--yes", code=1)
    assert "nothing to remove" in done.stdout


def test_a_topic_that_is_deleted_does_not_come_back(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """Neither pending changes in the slot nor a transaction open during the removal creates the topic again."""
    pipeline = _stopped(make_pipeline)
    pipeline.configure(source=_ONLY_A)
    pipeline.database.execute("INSERT INTO b VALUES (2, 'before')")
    writer = pipeline.database.connect(autocommit=False)
    writer.execute("INSERT INTO b VALUES (3, 'open'); INSERT INTO a VALUES (3, 'open')")
    command = tailrace("remove", "--config", str(pipeline.config), "--table", "public.b", "--topics", "--yes")
    command.wait_for(lambda: _published(pipeline) == ["a"], what="the table to leave the publication")
    assert pipeline.topic("b") in _ours(pipeline)
    writer.commit()
    command.expect_exit(0, 60)
    assert pipeline.topic("b") not in _ours(pipeline)
    pipeline.database.execute("INSERT INTO b VALUES (4, 'after'); INSERT INTO a VALUES (4, 'after')")
    capture = pipeline.start()
    pipeline.assert_same("a", while_running=capture)
    assert pipeline.topic("b") not in _ours(pipeline)


def test_a_removal_that_was_interrupted_is_run_again(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """Between publication and progress record capture refuses; a second run completes, and capture continues."""
    pipeline = _stopped(make_pipeline)
    pipeline.configure(source=_ONLY_A)
    locker = pipeline.database.connect(autocommit=False)
    locker.execute("LOCK TABLE b IN SHARE UPDATE EXCLUSIVE MODE")
    command = tailrace("remove", "--config", str(pipeline.config), "--table", "public.b", "--yes")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'alter publication%%' AND wait_event_type = 'Lock'"
    command.wait_for(lambda: pipeline.database.execute(waiting), what="the removal to wait for the lock")
    command.kill()  # its statement is at the server already, and runs to its end there
    locker.rollback()
    eventually(lambda: _published(pipeline) == ["a"], 30, "the table to leave the publication")
    eventually(lambda: pipeline.slot().pid is None, what="the slot to be free")
    refused = pipeline.launch()
    refused.expect_exit(3)
    _remove(pipeline, "--table", "public.b", "--yes", code=0)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO a VALUES (2, 'after')")
    pipeline.assert_same("a", while_running=capture)


def test_refused_while_capture_runs(make_pipeline: MakePipeline) -> None:
    """A removal is refused with exit code 3 and changes nothing while capture runs; a dry run says so as well."""
    pipeline = make_pipeline()
    pipeline.database.execute(_TABLES)
    capture = pipeline.start()
    before = _ours(pipeline)
    for arguments in (("--table", "public.b"), ("--all", "--topics"), ("--all", "--dry-run")):
        refused = _remove(pipeline, *arguments, "--yes", code=3)
        assert "Stop it" in refused.stderr
    assert (_slots(pipeline), _published(pipeline), _ours(pipeline)) == ([pipeline.slot_name], ["a", "b"], before)
    pipeline.database.execute("INSERT INTO b VALUES (1, 'x')")
    pipeline.assert_same("a", "b", while_running=capture)


def test_everything_goes_in_two_runs(make_pipeline: MakePipeline) -> None:
    """The first run removes slot and publication, the second one the topics; a new capture can use the same prefix."""
    pipeline = _stopped(make_pipeline)
    foreign = f"{pipeline.prefix}.not_ours"
    create_topic(pipeline.bootstrap, foreign)
    topics = _ours(pipeline)
    declined = _remove(pipeline, "--all", code=1)  # no answer is a no
    assert "Nothing was removed" in declined.stdout
    assert _slots(pipeline) == [pipeline.slot_name]

    done = _remove(pipeline, "--all", code=0, answer="y\n")
    assert (_slots(pipeline), _published(pipeline), _ours(pipeline)) == ([], [], topics)
    assert all(f"Left: topic {name}\n" in done.stdout for name in topics)
    pipeline.launch().expect_exit(3)  # its topics are of an earlier pipeline
    assert _slots(pipeline) == []
    _remove(pipeline, "--all", code=1)

    mistyped = _remove(pipeline, "--all", "--topics", code=1, answer="y\n")
    assert f"Type the prefix ({pipeline.prefix})" in mistyped.stdout
    assert _ours(pipeline) == topics
    _remove(pipeline, "--all", "--topics", code=0, answer=f"{pipeline.prefix}\n")
    eventually(lambda: _ours(pipeline) == {foreign}, what="the topics to go")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO a VALUES (9, 'new pipeline')")
    pipeline.fence(while_running=capture)
    assert [record.key for record in pipeline.records("a")] == [b'{"id":9}']


def test_json_tells_the_plan_and_what_was_done(make_pipeline: MakePipeline) -> None:
    """`--json` prints one document; a dry run changes nothing; a topic deleted by hand counts as removed."""
    pipeline = _stopped(make_pipeline)
    before = _ours(pipeline)
    planned = json.loads(_remove(pipeline, "--all", "--topics", "--dry-run", "--json", code=0).stdout)
    assert planned["state"] == "planned"
    actions = [(step["action"], step["name"], step["done"]) for step in planned["steps"]]
    assert actions[0] == ("drop_slot", pipeline.slot_name, False)
    assert actions[-2:] == [
        ("delete_topic", f"{pipeline.prefix}.__progress", False),
        ("drop_publication", "tailrace", False),
    ]
    assert (_slots(pipeline), _ours(pipeline)) == ([pipeline.slot_name], before)

    pipeline.configure(source=_ONLY_A)
    removed = json.loads(_remove(pipeline, "--table", "public.b", "--yes", "--json", code=0).stdout)
    assert removed["state"] == "removed"
    assert all(step["done"] for step in removed["steps"])
    assert removed["left"] == [pipeline.topic("b")]
    assert pipeline.topic("b") in pipeline.progress_records()[-1]["topic_ids"]
    delete_topic(pipeline.bootstrap, pipeline.topic("b"))
    struck = json.loads(_remove(pipeline, "--table", "public.b", "--yes", "--json", code=0).stdout)
    assert [step["action"] for step in struck["steps"]] == ["update_records"]
    assert pipeline.topic("b") not in pipeline.progress_records()[-1]["topic_ids"]
    pipeline.configure(source={"tables": ["public.others"]})
    last = _remove(pipeline, "--table", "public.a", "--yes", code=3)
    assert "tailrace remove --all" in last.stderr
    for wrong in ([], ["--all", "--table", "public.a"], ["--table", "public.*"], ["--all", "--json"]):
        _remove(pipeline, *wrong, code=2)


@pytest.fixture
def role(postgres_url: str, prefix: str) -> Iterator[str]:
    """A role that may replicate and connect, and owns nothing."""
    name = f"remove_{prefix}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_what_only_the_owner_may_do_is_said(role: str, make_pipeline: MakePipeline) -> None:
    """A role that owns nothing removes the slot, and the printed SQL for the publication's owner works."""
    pipeline = _stopped(make_pipeline)
    dsn = urlsplit(pipeline.database.dsn)
    dsn = dsn._replace(netloc=f"{role}@{dsn.hostname}:{dsn.port}")
    pipeline.configure(source={"dsn": dsn.geturl(), **_ONLY_A})
    refused = _remove(pipeline, "--table", "public.b", "--yes", code=3)
    statement = next(line for line in refused.stderr.splitlines() if "drop table" in line)
    pipeline.database.execute(statement)
    _remove(pipeline, "--table", "public.b", "--yes", code=0)

    refused = _remove(pipeline, "--all", "--topics", "--yes", code=3)
    assert _slots(pipeline) == []
    statement = next(line for line in refused.stderr.splitlines() if "drop publication" in line)
    pipeline.database.execute(statement.partition("run: ")[2])
    _remove(pipeline, "--all", "--topics", "--yes", code=1)


def test_the_slot_goes_while_kafka_is_down(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """The slot can be removed while Kafka is down."""
    pipeline = make_pipeline(kafka={"bootstrap": "127.0.0.1:1"})
    pipeline.database.execute(_TABLES)
    pipeline.database.execute("CREATE PUBLICATION tailrace FOR TABLE a")
    pipeline.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot_name])
    command = tailrace("remove", "--config", str(pipeline.config), "--all", "--yes")
    command.expect_exit(0, 60)
    assert "Kafka does not answer" in command.output
    assert (_slots(pipeline), _published(pipeline)) == ([], [])

"""`tailrace capture --status`: how far capture has come and which tables are incomplete, whether or not it runs."""

from __future__ import annotations

import json
from typing import Any

from cdc.lsn import LSN, Version
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually


def _ask(pipeline: Pipeline, tailrace: StartProcess, *options: str, code: int = 0) -> Process:
    process = tailrace("capture", "--config", str(pipeline.config), "--status", *options)
    process.expect_exit(code)
    return process


def _status(pipeline: Pipeline, tailrace: StartProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_ask(pipeline, tailrace, "--json").output)
    return found


def test_before_the_first_start(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """Before the first start the status says that there is nothing to report, with exit code 1, and creates nothing."""
    pipeline = make_pipeline()
    assert "not been started" in _ask(pipeline, tailrace, code=1).output
    assert json.loads(_ask(pipeline, tailrace, "--json", code=1).output) is None
    assert pipeline.database.execute("SELECT 1 FROM pg_publication") == []


def test_progress_and_incomplete_tables(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """The status shows progress and incomplete tables during capture, after it and without the source, as JSON and
    text.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(SCHEMA)
    database.execute('CREATE TABLE "Odd.Name" (id int PRIMARY KEY)')
    capture = pipeline.start()
    database.execute("INSERT INTO items VALUES (1, 0, 'a')")
    before = pipeline.fence(while_running=capture)
    status = _status(pipeline, tailrace)
    assert LSN.parse(status["confirmed_lsn"]) >= before
    assert Version.parse(status["version"]).position > 0
    assert status["state"] == "streaming"
    assert not status["inside_transaction"]
    assert {table["table"]: table["complete"] for table in status["tables"]} == {
        "public.items": True,
        "public.Odd.Name": True,
    }
    database.execute("ALTER TABLE items ALTER note TYPE int USING 7")

    def marked() -> dict[str, Any] | None:
        (table,) = [each for each in _status(pipeline, tailrace)["tables"] if each["table"] == "public.items"]
        return None if table["complete"] else table

    table: dict[str, Any] = eventually(marked, 30, "the table to be incomplete") or {}
    assert table["topic"] == pipeline.topic("items")
    assert "note" in table["reason"]
    assert LSN.parse(table["since"]) > before
    capture.terminate()
    capture.expect_exit(0)
    pipeline.configure(source={"dsn": "postgresql://nobody@127.0.0.1:1/nowhere"})
    text = _ask(pipeline, tailrace).output
    assert f"public.items: incomplete since {table['since']}: {table['reason']}" in text
    assert "public.Odd.Name: complete" in text
    assert "Published up to" in text

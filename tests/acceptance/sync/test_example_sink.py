"""A sink in a package of its own: every command works with a store that Tailrace does not know."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import Process, StartProcess
from tests.harness.stores.example_sink import install_example


@pytest.mark.timeout(600)
def test_every_command_works_with_a_sink_of_its_own_package(
    make_pipeline: MakePipeline, tailrace: StartProcess, tmp_path: Path
) -> None:
    """Sync fills the store of the guide's example; check, lag, wait, audit with repair, and bootstrap work."""
    pipeline = make_pipeline()
    database = pipeline.database
    section = f'[stores.lite]\nkind = "sqlite"\npath = "{tmp_path / "store.db"}"\nparallelism = 1\n'
    config = tmp_path / "lite.toml"  # capture runs without the package, so it has a config without the store
    config.write_text(f"{pipeline.config.read_text()}\n{section}")
    environ = {"PYTHONPATH": str(install_example(tmp_path / "sink"))}

    def run(command: str, *arguments: str) -> Process:
        return tailrace(command, *arguments, "--config", str(config), env=environ)

    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 500) i")
    sync = run("sync", "lite")
    sync.wait_for_line("batch_applied", 240)
    database.execute("DELETE FROM t WHERE id <= 100; UPDATE t SET v = 'new' WHERE id > 400")
    wait = run("wait", "lite", "--lsn", str(database.lsn()), "--timeout", "120")
    wait.expect_exit(0, 150)
    lag = run("lag", "--json")
    lag.expect_exit(0, 60)
    assert [each["name"] for each in json.loads(lag.output)["stores"]] == ["lite"]
    check = run("check", "--json")
    check.wait(60)
    assert "SQLite" in check.output, check.transcript()
    assert _audited(run("audit", "lite", "--json")) == ("equal", 0)
    _tamper(tmp_path / "store.db")
    assert _audited(run("audit", "lite", "--repair", "--json")) == ("equal", 2)
    bootstrap = run("bootstrap", "lite")
    bootstrap.expect_exit(0, 240)
    assert _audited(run("audit", "lite", "--json")) == ("equal", 0)
    sync.terminate()
    sync.expect_exit(0, 90)
    capture.stop()


def _audited(process: Process) -> tuple[str, int]:
    process.expect_exit(0, 240)
    (found,) = json.loads(process.output)["audits"]
    return found["verdict"], found["repaired"]


def _tamper(path: Path) -> None:
    """Another program's write: one row has other values, and one row has a version that no change will ever have."""
    with closing(sqlite3.connect(path)) as connection, connection as database:
        database.execute('update rows set row = \'{"id":200,"v":"wrong"}\' where id = \'200\'')
        database.execute("update rows set version = 'ffffffff00000000.00000000' where id = '201'")

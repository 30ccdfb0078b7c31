"""`tailrace init`: the config loads, the printed SQL runs unchanged, and capture works with that role."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from cdc.check.managed_services import SERVICES
from cdc.config import load_config
from cdc.setup.source_sql import source_sql
from cdc.setup.survey import survey
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import ROOT, StartProcess, tailrace_argv

_SOURCE = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE "user" (id int PRIMARY KEY DEFERRABLE, "Größe" int);
CREATE TABLE "Odd.Name ${x}
" (id int PRIMARY KEY, note text);
CREATE TABLE quiet (id int PRIMARY KEY, note text);
ALTER TABLE quiet REPLICA IDENTITY NOTHING;
CREATE SCHEMA "select";
CREATE TABLE "select".guarded (id int PRIMARY KEY, note text);
ALTER TABLE "select".guarded ENABLE ROW LEVEL SECURITY;
CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE keyless (note text);
CREATE UNLOGGED TABLE fast (id int PRIMARY KEY);
INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n;
ANALYZE orders;
"""
_CAPTURED = (
    'public."Odd.Name ${x}\n"',
    "public.orders",
    "public.parted",
    "public.quiet",
    "public.user",
    "select.guarded",
)


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A name for a role that `init` asks for, dropped after the test."""
    name = "Init's role"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def _init(database: Database, output: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `init` with a password in the DSN, which the trusting test server does not ask for."""
    parts = urlsplit(database.dsn)
    dsn = parts._replace(netloc=parts.netloc.replace("@", ":hunter2@")).geturl()
    done = subprocess.run(
        tailrace_argv("init", "--dsn", dsn, "--output", str(output), *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "hunter2" not in done.stdout + done.stderr
    return done


def _statements(text: str) -> list[str]:
    """The statements as a SQL client would send them: one by one, without comments."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("--")]
    return [statement.strip() for statement in "".join(lines).split(";\n") if statement.strip()]


def test_the_sql_runs_and_capture_works_with_that_role(
    role: str,
    database: Database,
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The printed SQL and the written file are enough for odd names, row-level security and a deferrable key."""
    database.execute(_SOURCE)
    pipeline = Pipeline(database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
    settings = ("--kafka", kafka_bootstrap, "--prefix", prefix, "--role", role)
    before = database.execute("SELECT oid, xmin FROM pg_class ORDER BY oid")
    printed = _init(database, pipeline.config, *settings)
    assert database.execute("SELECT oid, xmin FROM pg_class ORDER BY oid") == before
    for statement in _statements(printed.stdout):
        database.execute(statement)
    again = _init(database, tmp_path / "again.toml", *settings)
    assert _statements(again.stdout) == []

    monkeypatch.setenv("TAILRACE_PASSWORD", "hunter2")
    with pipeline.config.open("a") as file:
        file.write("\n[snapshot]\ninitial = false\n")  # no Spark job here: the rows below are changes
    config = load_config(pipeline.config)
    assert tuple(map(str, config.source.tables)) == _CAPTURED
    capture = pipeline.start()
    database.execute("INSERT INTO orders VALUES (0, 'a'); UPDATE orders SET note = 'b' WHERE id = 0")
    database.execute('INSERT INTO "user" VALUES (1, 1), (2, 2); UPDATE "user" SET id = 3 - id')
    database.execute(
        'INSERT INTO "select".guarded VALUES (1, repeat(\'x\', 100000)); UPDATE "select".guarded SET id = 2'
    )
    database.execute("INSERT INTO quiet VALUES (1, 'a'); DELETE FROM quiet")
    database.execute("INSERT INTO keyless VALUES ('a'); INSERT INTO fast VALUES (1)")
    database.execute("INSERT INTO parted VALUES (1, 'a'), (2, 'b'); DELETE FROM parted WHERE id = 1")
    pipeline.assert_same("quiet", "parted", "user", "select.guarded", while_running=capture)
    ((session,),) = database.execute(
        "SELECT DISTINCT usename FROM pg_stat_activity"
        " WHERE application_name LIKE 'tailrace%' AND datname = current_database()"
    )
    assert session == role


def test_the_file_says_what_it_found(database: Database, tmp_path: Path) -> None:
    """The file has sizes and row counts, and tables that cannot be captured with reason and remedy; it has no
    password.
    """
    database.execute(_SOURCE)
    output = tmp_path / "tailrace.toml"
    printed = _init(database, output)
    text = output.read_text()
    assert "hunter2" not in text
    assert 'password = "${TAILRACE_PASSWORD}"' in text
    assert "TAILRACE_PASSWORD" in printed.stderr
    lines = {line.split('"')[1]: line for line in text.splitlines() if line.startswith(('  "', '  # "'))}
    assert "1,000 rows" in lines["public.orders"]
    assert "kB" in lines["public.orders"]
    assert "needs replica identity full" in lines["public.user"]
    for name, reason, remedy in (
        ("public.keyless", "no primary key", "add primary key"),
        ("public.fast", "unlogged", "set logged"),
    ):
        assert lines[name].startswith("  # ")
        assert reason in lines[name]
        assert remedy in lines[name]
    config = load_config(output, {"TAILRACE_PASSWORD": "x"})
    assert tuple(map(str, config.source.tables)) == _CAPTURED
    assert config.source.dsn.reveal() == database.dsn.replace("postgres@", "tailrace@")
    assert config.kafka.prefix == database.name[:40]


def test_a_file_that_exists_is_kept(database: Database, tmp_path: Path) -> None:
    """An existing file is overwritten only with --force, and an invalid value writes no file.

    An empty database gives a config.
    """
    output = tmp_path / "tailrace.toml"
    output.write_text("mine")
    refused = _init(database, output, code=2)
    assert "--force" in refused.stderr
    _init(database, output, "--force", "--kafka", "nonsense", code=2)
    assert output.read_text() == "mine"
    _init(database, output, "--force")
    assert tuple(map(str, load_config(output, {"TAILRACE_PASSWORD": "x"}).source.tables)) == ("public.*",)
    assert [path.name for path in tmp_path.iterdir()] == ["tailrace.toml"]


def test_only_what_is_missing_is_in_the_sql(database: Database, tmp_path: Path) -> None:
    """On a server with all settings, the SQL has no statement for them; a superuser needs no grants."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    printed = _init(database, tmp_path / "tailrace.toml", "--role", "postgres").stdout
    assert "alter system set wal_level" not in printed
    assert "--   alter system set max_slot_wal_keep_size" in printed
    (publication,) = _statements(printed)
    assert publication.startswith("create publication")


def test_settings_that_differ_are_in_the_sql(database: Database) -> None:
    """Wrong settings become statements on an ordinary server, and instructions on a managed service."""
    found = survey(database.connect(), role="tailrace", publication="tailrace")
    lacking = {**found.settings, "wal_level": "replica", "max_replication_slots": str(found.slots_used)}
    found = replace(found, settings=lacking)
    statements = _statements(source_sql(found, publication="tailrace"))
    assert statements[:2] == [
        "alter system set wal_level = 'logical'",
        f"alter system set max_replication_slots = '{found.slots_used + 4}'",
    ]
    rds = source_sql(replace(found, service=SERVICES[0]), publication="tailrace")
    assert "rds.logical_replication = 1" in rds
    assert [statement.split() for statement in _statements(rds)] == [
        ["create", "role", "tailrace", "with", "login"],
        ["grant", "rds_replication", "to", "tailrace"],
    ]

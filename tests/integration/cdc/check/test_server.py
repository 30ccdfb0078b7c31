"""`tailrace check` on dedicated Postgres servers: settings that need a restart, a standby, TLS, passwords."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.check import Finding, Level, inspect
from cdc.check.managed_services import ORDINARY
from cdc.check.server import judge_server, read_server
from deploy.stack import Stack, open_stack
from tests.harness.pipeline.check_runs import assert_found, assert_no_fail, config_text, make_config, slot_name
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually

SETTINGS = {
    "fsync": "off",
    "max_wal_senders": "1",
    "max_replication_slots": "1",
    "max_slot_wal_keep_size": "48MB",
    "idle_replication_slot_timeout": "2h",
    "checkpoint_timeout": "1h",
}
PASSWORD = "correct-horse-battery"
WRONG_PASSWORD = "hunter2-staple"


class OwnServer:
    """A dedicated Postgres for this module, with few slots and short limits."""

    def __init__(self, folder: Path) -> None:
        self.stack: Stack = open_stack(folder, postgres_settings=SETTINGS)
        self.stack.up(["postgres"])
        server = self.stack.server("postgres")
        self.dsn, self.port = server.address, server.port
        self.data = self.stack.home("postgres") / "data"

    def execute(self, statement: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def restart(self) -> None:
        self.stack.stop("postgres", signal.SIGTERM)
        self.stack.start("postgres")

    def place(self, name: str, content: str) -> Path:
        """Write a file into the data folder that only the server's account can read."""
        path = self.data / name
        path.write_text(content)
        path.chmod(0o600)
        owner = self.data.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        return path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    folder = tmp_path_factory.mktemp("own") / "stack"
    server = OwnServer(folder)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    try:
        yield server
    finally:
        server.stack.down(wipe=True)


@pytest.fixture
def found_on(own: OwnServer, kafka_bootstrap: str, prefix: str) -> Any:
    """Check the module's server as it is now."""

    def run() -> list[Finding]:
        return inspect(make_config(own.dsn, kafka_bootstrap, prefix))

    return run


def test_limits_on_the_slot_are_told(own: OwnServer, found_on: Any) -> None:
    """A small max_slot_wal_keep_size and an idle timeout are reported, since both can invalidate the slot."""
    found = found_on()
    assert_no_fail(found)
    assert_found(found, Level.WARN, "server", "max_slot_wal_keep_size is 48MB", "alter system set")
    assert_found(
        found, Level.WARN, "server", "idle_replication_slot_timeout is 2h", "idle_replication_slot_timeout = '0'"
    )


def test_wal_held_by_the_slot(own: OwnServer, found_on: Any, prefix: str) -> None:
    """Retained WAL beyond half of the limit is a warning, and beyond the limit a failure."""
    name = slot_name(prefix)
    own.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    try:
        _write_segments(own, 2)
        assert_found(found_on(), Level.WARN, f"slot {name}", "of WAL, and the limit is")
        _write_segments(own, 3)
        assert_found(found_on(), Level.FAIL, f"slot {name}", "about to invalidate it", "Start capture")
        own.execute("CHECKPOINT")
        assert_found(found_on(), Level.FAIL, f"slot {name}", "invalidated")
    finally:
        own.execute("SELECT pg_drop_replication_slot(%s)", [name])


def test_no_slot_and_no_sender_left(own: OwnServer, found_on: Any) -> None:
    """When all slots or senders are in use, the check fails and names the settings."""
    own.execute("SELECT pg_create_physical_replication_slot('other', true)")
    try:
        with psycopg.connect(f"{own.dsn}?replication=database", autocommit=True) as sender:
            sender.execute("IDENTIFY_SYSTEM")
            found = found_on()
        assert_found(found, Level.FAIL, "server", "1 of 1 replication slots", "max_replication_slots = '5'")
        assert_found(found, Level.FAIL, "server", "1 of 1 WAL senders", "max_wal_senders = '5'")
        assert_found(found, Level.FAIL, "role", "replication connection failed", "max_wal_senders")
    finally:
        own.execute("SELECT pg_drop_replication_slot('other')")


def test_wal_level_and_a_standby(own: OwnServer, found_on: Any) -> None:
    """A wrong wal_level fails with the setting as the remedy, and a standby with another address."""
    own.execute("ALTER SYSTEM SET wal_level = replica")
    own.place("standby.signal", "")
    own.restart()
    try:
        found = found_on()
        assert_found(found, Level.FAIL, "server", "wal_level is replica", "alter system set wal_level = logical;")
        assert_found(found, Level.FAIL, "server", "standby", "Point [source] dsn at the primary")
    finally:
        (own.data / "standby.signal").unlink()
        (own.data / "postgresql.auto.conf").write_text("")
        own.restart()
    assert_no_fail(found_on())


@pytest.mark.parametrize(
    ("version", "level", "what"), [(130_011, Level.FAIL, "too old"), (190_000, Level.WARN, "newer than")]
)
def test_versions(own: OwnServer, version: int, level: Level, what: str) -> None:
    """Postgres 14 to 18 pass, an older version fails, and a newer one gives a warning."""
    with psycopg.connect(own.dsn) as connection:
        facts = dataclasses.replace(read_server(connection), version=version)
    found = judge_server(facts, ORDINARY, slot_exists=False, slot_active=False)
    assert_found(found, level, "server", what)


@pytest.fixture
def oldest(tmp_path: Path) -> Iterator[str]:
    stack = open_stack(tmp_path / "stack", postgres_major=14, postgres_settings={"fsync": "off"})
    stack.up(["postgres"])
    try:
        yield stack.server("postgres").address
    finally:
        stack.down(wipe=True)


def test_the_oldest_major(oldest: str, kafka_bootstrap: str, prefix: str) -> None:
    """The check works on the oldest supported version, whose catalog has fewer columns."""
    with psycopg.connect(oldest, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
        connection.execute("CREATE PUBLICATION tailrace FOR TABLE ONLY t WITH (publish = 'insert')")
    found = inspect(make_config(oldest, kafka_bootstrap, prefix))
    assert_found(found, Level.OK, "server", "Postgres 14.")
    assert_found(found, Level.OK, "table public.t", "generated columns (twice) are not in the stream")
    assert_found(found, Level.FAIL, "publication tailrace", "does not publish update, delete, truncate")


# -- TLS and passwords ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authorities(own: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """TLS with a certificate for `localhost` from one authority, and another authority that signed nothing."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("right", "wrong"):
        _openssl(folder, "req", "-x509", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    _openssl(folder, "req", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    issue = ("-CA", "right.pem", "-CAkey", "right.key", "-CAcreateserial", "-extfile", "names", "-out", "server.crt")
    subprocess.run(
        ["openssl", "x509", "-req", "-in", "server.csr", *issue], cwd=folder, check=True, capture_output=True
    )
    for name in ("server.crt", "server.key"):
        own.place(name, (folder / name).read_text())
    own.execute("ALTER SYSTEM SET ssl = on")
    own.execute("SELECT pg_reload_conf()")
    own.execute(f"CREATE ROLE app LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    own.execute("GRANT SELECT ON t TO app")
    own.execute("CREATE PUBLICATION tailrace FOR TABLE ONLY t")
    rules = (own.data / "pg_hba.conf").read_text()
    own.place("pg_hba.conf", f"hostssl all app all scram-sha-256\nhost all app all reject\n{rules}")
    own.execute("SELECT pg_reload_conf()")
    eventually(lambda: own.execute("SELECT count(*) FROM pg_hba_file_rules WHERE user_name = '{app}'") == [(2,)])
    return {name: folder / f"{name}.pem" for name in ("right", "wrong")}


def test_tls_with_the_right_authority_and_name(
    own: OwnServer, authorities: dict[str, Path], kafka_bootstrap: str, prefix: str
) -> None:
    """A trusted certificate and the right password give no failure."""
    dsn = f"postgresql://app@localhost:{own.port}/postgres"
    source = {"password": PASSWORD, "tls.ca": str(authorities["right"])}
    assert_no_fail(inspect(make_config(dsn, kafka_bootstrap, prefix, source=source)))


REFUSALS = {
    "wrong authority": ("localhost", "wrong", PASSWORD, "certificate verify failed"),
    "wrong host name": ("127.0.0.1", "right", PASSWORD, "does not match host name"),
    "wrong password": ("localhost", "right", WRONG_PASSWORD, "password authentication failed"),
}


@pytest.mark.parametrize(("host", "authority", "password", "what"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_server_that_cannot_be_trusted(
    own: OwnServer,
    authorities: dict[str, Path],
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    host: str,
    authority: str,
    password: str,
    what: str,
) -> None:
    """With an untrusted certificate check fails and capture exits with code 3; neither prints the password."""
    config = tmp_path / "tailrace.toml"
    source = {"password": password, "tls.ca": str(authorities[authority])}
    dsn = f"postgresql://app@{host}:{own.port}/postgres"
    config.write_text(config_text(dsn, kafka_bootstrap, prefix, source=source))
    check = tailrace("--log-level", "debug", "check", "--config", str(config))
    capture = tailrace("--log-level", "debug", "capture", "--config", str(config))
    check.expect_exit(1)
    capture.expect_exit(3)
    assert "FAIL  server: Postgres rejects the connection" in check.output
    assert what in check.output
    assert what in capture.errors
    for process in (check, capture):
        assert password not in process.output + process.errors
    assert password not in own.stack.log_path("postgres").read_text()


def _write_segments(own: OwnServer, count: int) -> None:
    for _ in range(count):
        own.execute("SELECT pg_logical_emit_message(false, 'test', 'x'), pg_switch_wal()")


def _openssl(folder: Path, *arguments: str) -> None:
    binary = shutil.which("openssl")
    assert binary, "this test makes certificates with the openssl command"
    key = ("-newkey", "rsa:2048", "-nodes")
    subprocess.run([binary, *arguments, *key], cwd=folder, check=True, capture_output=True)

"""Connections to the source: the same settings in every session, and a clear error when one cannot be opened."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import RefusedError, TransientError
from cdc.postgres.connection import SESSION_SETTINGS, connect, explain
from tests.harness.postgres.database import Database
from tests.harness.servers.dedicated_postgres import OwnPostgres


def _show(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def stubborn(database: Database) -> Database:
    """A database whose settings differ from all of ours."""
    for setting in (
        "DateStyle = 'German'",
        "IntervalStyle = 'postgres_verbose'",
        "TimeZone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
        "quote_all_identifiers = on",
        "xmlbinary = 'hex'",
    ):
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    return database


def test_our_settings_outrank_those_of_the_database(stubborn: Database) -> None:
    """Our settings take precedence over the database's, so that a value has one text."""
    with connect(stubborn.dsn) as connection:
        assert {name: _show(connection, name) for name in SESSION_SETTINGS} == SESSION_SETTINGS


TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}


@pytest.mark.parametrize("replication", [{}, {"replication": "database"}], ids=["plain", "replication"])
def test_time_limits_of_the_role_do_not_hold_for_us(database: Database, replication: dict[str, str]) -> None:
    """Time limits of the role do not apply to our sessions, and the server notices by itself when our host is gone."""
    for name in TIMEOUTS:
        database.execute(f'ALTER ROLE postgres IN DATABASE "{database.name}" SET {name} = 1234')
    with psycopg.connect(database.dsn) as plain:
        assert {_show(plain, name) for name in TIMEOUTS} == {"1234ms"}
    connection = connect(database.dsn, **replication)
    try:  # a replication connection knows only simple queries
        answers = {
            name: connection.pgconn.exec_(f"SHOW {name}".encode()).get_value(0, 0) for name in (*TIMEOUTS, *KEEPALIVES)
        }
    finally:
        connection.close()
    expected = {**dict.fromkeys(TIMEOUTS, "0"), **KEEPALIVES}
    assert {name: (answer or b"").decode() for name, answer in answers.items()} == expected


def test_keepalives_do_no_harm_on_a_unix_socket(tmp_path: Path) -> None:
    """A connection over a Unix socket, which has no keepalives, works."""
    with TemporaryDirectory() as folder:  # its path is short enough for a socket
        Path(folder).chmod(0o777)  # the server may run under another account
        server = OwnPostgres(tmp_path)
        try:
            server.configure({"unix_socket_directories": folder})
            server.stop()
            server.start()
            with connect(make_conninfo(server.dsn, host=folder)) as connection:
                assert connection.info.host == folder
                assert _show(connection, "lock_timeout") == "0"
        finally:
            server.close()


def test_options_in_the_connection_string_are_kept(database: Database) -> None:
    """Options in the connection string are kept, and ours win where they conflict."""
    dsn = make_conninfo(database.dsn, options="-c statement_timeout=12345 -c TimeZone=Asia/Tokyo")
    with connect(dsn) as connection:
        assert _show(connection, "statement_timeout") == "12345ms"
        assert _show(connection, "TimeZone") == "UTC"


def test_rows_that_a_policy_hides_are_an_error_not_an_omission(database: Database) -> None:
    """A query under row-level security raises instead of returning fewer rows."""
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY)")
    database.execute("ALTER TABLE hidden ENABLE ROW LEVEL SECURITY")
    role = f"{database.name}_reader"
    database.execute(f'CREATE ROLE "{role}" LOGIN')
    try:
        database.execute(f'GRANT SELECT ON hidden TO "{role}"')
        with (
            connect(make_conninfo(database.dsn, user=role)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("SELECT * FROM hidden")
    finally:
        database.execute(f'DROP OWNED BY "{role}"')
        database.execute(f'DROP ROLE "{role}"')


def test_each_statement_is_its_own_transaction(database: Database) -> None:
    """Each statement is its own transaction, since an open one would hold back vacuum on the source."""
    with connect(database.dsn) as connection:
        connection.execute("SELECT 1")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_server_that_does_not_answer_is_a_transient_error(database: Database) -> None:
    """A server that does not answer is a transient error, since it may be restarting."""
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        dsn = make_conninfo(database.dsn, host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(TransientError, match="cannot be reached"):
            connect(dsn)


def test_a_server_without_free_connections_is_a_transient_error(database: Database) -> None:
    """A server without free connections is a transient error, since sessions end."""
    role = f"{database.name}_crowd"
    database.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 0')
    try:
        with pytest.raises(TransientError, match="too many connections"):
            connect(make_conninfo(database.dsn, user=role))
    finally:
        database.execute(f'DROP ROLE "{role}"')


def test_a_missing_database_is_refused_with_a_remedy(database: Database) -> None:
    """A missing database is refused with a remedy, since retries would hide a typing mistake."""
    with pytest.raises(RefusedError, match="does not exist") as refusal:
        connect(make_conninfo(database.dsn, dbname="nowhere_to_be_found"))
    assert refusal.value.exit_code == 3
    assert "[source]" in str(refusal.value.remedy)


def test_a_role_that_may_not_log_in_is_refused(database: Database) -> None:
    """A role without LOGIN is refused, since an administrator must grant it."""
    role = f"{database.name}_barred"
    database.execute(f'CREATE ROLE "{role}" NOLOGIN')
    try:
        with pytest.raises(RefusedError, match="not permitted to log in"):
            connect(make_conninfo(database.dsn, user=role))
    finally:
        database.execute(f'DROP ROLE "{role}"')


@contextmanager
def _ends_tls_with(answer: bytes) -> Iterator[int]:
    """The port of a server that accepts TLS, sends these bytes instead of a handshake, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    with accepted:
                        accepted.recv(8)  # SSLRequest
                        accepted.sendall(b"S")
                        accepted.recv(1)
                        accepted.sendall(answer)
                        accepted.shutdown(socket.SHUT_WR)
                        while accepted.recv(4096):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_an_interrupted_tls_handshake_is_a_transient_error(database: Database) -> None:
    """An interrupted TLS handshake is a transient error, since a server or load balancer may be restarting."""
    with _ends_tls_with(b"") as port, pytest.raises(TransientError, match="SSL"):
        connect(make_conninfo(database.dsn, host="127.0.0.1", port=port, sslmode="require"))


def test_a_server_that_is_not_postgres_is_refused(database: Database) -> None:
    """A server that answers the TLS request with other bytes is refused as not being Postgres."""
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with _ends_tls_with(answer) as port, pytest.raises(RefusedError, match="wrong version number"):
        connect(make_conninfo(database.dsn, host="127.0.0.1", port=port, sslmode="require"))


def test_tls_that_the_server_does_not_speak_is_refused(database: Database) -> None:
    """A server without TLS is refused when TLS is required, and no plain connection is made."""
    with pytest.raises(RefusedError, match="SSL"):
        connect(make_conninfo(database.dsn, sslmode="require"))


def test_no_error_shows_the_password(database: Database) -> None:
    """No connection error has the password, since errors are logged."""
    dsn = make_conninfo(database.dsn, dbname="nowhere_to_be_found", password="hunter2-secret")
    assert conninfo_to_dict(dsn)["password"] == "hunter2-secret"
    with pytest.raises(RefusedError) as refusal:
        connect(dsn)
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_an_explanation_is_one_line() -> None:
    """A connection error is one line, although libpq's has several, with tabs."""
    assert explain(psycopg.OperationalError("first\n\tsecond\n")) == "first second"
    assert explain(psycopg.OperationalError()) == "OperationalError"

"""Connections to the source: the same settings in every session, and a clear word when there is none to be had."""

from __future__ import annotations

import socket

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.errors import RefusedError, TransientError
from cdc.postgres import connect, explain
from cdc.values import SESSION_SETTINGS
from tests.harness.database import Database


def _show(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def stubborn(database: Database) -> Database:
    """A database that sets everything otherwise."""
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
    """A value has one text, whatever the administrator likes to see in psql."""
    with connect(stubborn.dsn) as connection:
        assert {name: _show(connection, name) for name in SESSION_SETTINGS} == SESSION_SETTINGS


def test_options_in_the_connection_string_are_kept(database: Database) -> None:
    """They are the user's; ours come behind them and win where they clash."""
    dsn = make_conninfo(database.dsn, options="-c statement_timeout=12345 -c TimeZone=Asia/Tokyo")
    with connect(dsn) as connection:
        assert _show(connection, "statement_timeout") == "12345ms"
        assert _show(connection, "TimeZone") == "UTC"


def test_rows_that_a_policy_hides_are_an_error_not_an_omission(database: Database) -> None:
    """A re-select that silently sees fewer rows would publish a loss."""
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
    """An open transaction of ours would hold back vacuum on the source."""
    with connect(database.dsn) as connection:
        connection.execute("SELECT 1")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_server_that_does_not_answer_is_worth_another_try(database: Database) -> None:
    """It may be restarting."""
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        dsn = make_conninfo(database.dsn, host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(TransientError, match="cannot be reached"):
            connect(dsn)


def test_a_server_that_is_full_is_worth_another_try(database: Database) -> None:
    """Somebody will leave."""
    role = f"{database.name}_crowd"
    database.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT 0')
    try:
        with pytest.raises(TransientError, match="too many connections"):
            connect(make_conninfo(database.dsn, user=role))
    finally:
        database.execute(f'DROP ROLE "{role}"')


def test_a_missing_database_is_refused_with_a_remedy(database: Database) -> None:
    """Trying again for hours would hide a typing mistake."""
    with pytest.raises(RefusedError, match="does not exist") as refusal:
        connect(make_conninfo(database.dsn, dbname="nowhere_to_be_found"))
    assert refusal.value.exit_code == 3
    assert "[source]" in str(refusal.value.remedy)


def test_a_role_that_may_not_log_in_is_refused(database: Database) -> None:
    """A person must grant it."""
    role = f"{database.name}_barred"
    database.execute(f'CREATE ROLE "{role}" NOLOGIN')
    try:
        with pytest.raises(RefusedError, match="not permitted to log in"):
            connect(make_conninfo(database.dsn, user=role))
    finally:
        database.execute(f'DROP ROLE "{role}"')


def test_tls_that_the_server_does_not_speak_is_refused(database: Database) -> None:
    """Falling back to plain text is not ours to decide."""
    with pytest.raises(RefusedError, match="SSL"):
        connect(make_conninfo(database.dsn, sslmode="require"))


def test_no_error_shows_the_password(database: Database) -> None:
    """Errors go to logs."""
    dsn = make_conninfo(database.dsn, dbname="nowhere_to_be_found", password="hunter2-secret")
    assert conninfo_to_dict(dsn)["password"] == "hunter2-secret"
    with pytest.raises(RefusedError) as refusal:
        connect(dsn)
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_an_explanation_is_one_line() -> None:
    """libpq's errors come in several, with tabs."""
    assert explain(psycopg.OperationalError("first\n\tsecond\n")) == "first second"
    assert explain(psycopg.OperationalError()) == "OperationalError"

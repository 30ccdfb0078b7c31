"""docs/reference/types.md against a real server: every example, both ways, from the stream and from a query."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from cdc.encoding.values import TypeInfo, built_in, encoder_for, load_types
from cdc.postgres.connection import startup_options
from tests.golden.documented import Example, read_examples, read_setup
from tests.golden.inverse import to_input

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An example as the server stores it."""

    example: Example
    table: str
    type_info: TypeInfo
    typmod: int
    text: bytes

    @property
    def json(self) -> str:
        return encoder_for(self.type_info, self.typmod)(self.text).decode()

    def __str__(self) -> str:
        return f"{self.example.type} {self.example.sql}"


@pytest.fixture
def connection(postgres_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_dsn, autocommit=True, options=startup_options()) as connection:
        connection.execute(read_setup().encode())
        yield connection


def text_of(connection: Connection, query: str) -> bytes:
    """The value's text as the server sends it: `::text` would cut the padding of char(n)."""
    result = connection.pgconn.exec_params(query.encode(), [])
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    text = result.get_value(0, 0)
    assert text is not None
    return text


def store_all(connection: Connection) -> list[Stored]:
    major = connection.info.server_version // 10000
    stored = []
    for number, example in enumerate(read_examples()):
        if example.since > major:
            continue
        table = f"example_{number}"
        connection.execute(f"CREATE TABLE {table} (v {example.type})".encode())
        connection.execute(f"INSERT INTO {table} VALUES ({example.sql})".encode())
        stored.append((table, example))
    columns = {
        table: (oid, typmod)
        for table, oid, typmod in connection.execute(
            "SELECT relname, atttypid, atttypmod FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid"
            " WHERE relname LIKE 'example\\_%' AND attnum = 1"
        )
    }
    types = load_types(connection, [oid for oid, _ in columns.values()])
    return [
        Stored(
            example=example,
            table=table,
            type_info=types[columns[table][0]],
            typmod=columns[table][1],
            text=text_of(connection, f"SELECT v FROM {table}"),
        )
        for table, example in stored
    ]


def test_every_documented_value_has_the_documented_json(connection: Connection) -> None:
    """Capture and snapshots write the JSON column of docs/reference/types.md byte for byte."""
    stored = store_all(connection)

    assert len(stored) > 150
    wrong = [f"{one}: {one.json} instead of {one.example.json}" for one in stored if one.json != one.example.json]
    assert wrong == []


def test_every_documented_value_comes_back_from_its_json(connection: Connection) -> None:
    """The JSON form given back to Postgres is the same value, byte for byte."""
    wrong = []
    for one in store_all(connection):
        given = to_input(one.type_info, one.typmod, json.loads(one.json))
        connection.execute(f"TRUNCATE {one.table}".encode())
        connection.execute(f"INSERT INTO {one.table} VALUES (%s)".encode(), [given])
        again = text_of(connection, f"SELECT v FROM {one.table}")
        if again != one.text:
            wrong.append(f"{one}: {given!r} became {again!r}, was {one.text!r}")
    assert wrong == []


def test_the_stream_sends_the_same_text_as_a_query(connection: Connection) -> None:
    """A row from a query and the same row from the stream have the same bytes, for every type."""
    connection.execute("CREATE PUBLICATION types FOR ALL TABLES")
    connection.execute("SELECT pg_create_logical_replication_slot('types_' || pg_backend_pid(), 'pgoutput', true)")
    stored = store_all(connection)
    stream = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('types_' || pg_backend_pid(), NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'types')"
    ).fetchall()
    inserts = [bytes(data) for (data,) in stream if data[:1] == b"I"]

    assert len(inserts) == len(stored)
    for one, insert in zip(stored, inserts, strict=True):
        # Insert: 'I', relation, 'N', one column, 't' and its length, the text.
        assert insert[5:] == b"N" + struct.pack(">HcI", 1, b"t", len(one.text)) + one.text, str(one)


def test_the_settings_of_a_role_or_database_do_not_change_a_value(connection: Connection, postgres_dsn: str) -> None:
    """Settings of a role or database do not change how a value is written, because start-up options take precedence."""
    for setting in (
        "DateStyle = 'German, DMY'",
        "IntervalStyle = 'sql_standard'",
        "TimeZone = 'Asia/Kathmandu'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
        "quote_all_identifiers = on",
    ):
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    with psycopg.connect(postgres_dsn, autocommit=True, options=startup_options()) as later:
        wrong = [str(one) for one in store_all(later) if one.json != one.example.json]
    assert wrong == []


def test_the_built_in_types_are_those_of_the_server(connection: Connection) -> None:
    """The static table of built-in types equals the server's catalog."""
    rows = connection.execute(
        "SELECT t.oid::int8, t.typname::text, t.typoutput = 'array_out'::regproc, t.typelem::int8, e.typdelim::text"
        " FROM pg_type AS t LEFT JOIN pg_type AS e ON e.oid = t.typelem"
        " WHERE t.oid < 10000 AND t.typtype IN ('b', 'r', 'm') AND (e.typtype IS NULL OR e.typtype IN ('b', 'r', 'm'))"
    ).fetchall()
    assert len(rows) > 140
    for oid, name, is_array, element, delimiter in rows:
        known = built_in(oid)
        assert known is not None, name
        assert known.name == name
        assert (known.kind == "array") is is_array
        if known.base is not None:
            assert (known.base.oid, known.delimiter) == (element, delimiter)


def test_types_of_users_are_read_with_what_they_are_made_of(connection: Connection) -> None:
    """One catalog query gives a domain's base type and typmod and an array's element, at any depth."""
    connection.execute('CREATE SCHEMA "Odd Name"; CREATE DOMAIN "Odd Name"."a.b" AS moment[]')
    (oid,) = connection.execute("""SELECT '"Odd Name"."a.b"'::regtype::oid::int8""").fetchone() or (0,)

    domain = load_types(connection, [oid, 23])[oid]

    assert (domain.name, domain.kind) == ('"Odd Name"."a.b"', "domain")
    array = domain.base
    assert array is not None
    assert (array.kind, array.delimiter) == ("array", ",")
    moment = array.base
    assert moment is not None
    assert (moment.name, moment.kind, moment.base_typmod, moment.base) == ("public.moment", "domain", 3, built_in(1184))
    assert encoder_for(domain, -1)(b'{"2024-02-29 12:34:56+00"}') == b'["2024-02-29T12:34:56.000Z"]'


def test_a_type_that_was_dropped_since_is_encoded_as_text(connection: Connection) -> None:
    """A value of a type that was dropped since is encoded as text and not lost."""
    gone = load_types(connection, [4_000_000_000])[4_000_000_000]

    assert encoder_for(gone, -1)(b'(1,"x")') == b'"(1,\\"x\\")"'

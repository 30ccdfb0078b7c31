"""A row from a snapshot and the same row from the stream have the same key and `after`, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cdc.config import Config, parse_config
from cdc.pgoutput.decoder import decode_message
from cdc.pgoutput.messages import Insert, Relation
from cdc.postgres.connection import connect
from cdc.snapshot.copy_rows import READS_TUPLES, LineEncoder
from cdc.snapshot.records import BlockRange
from cdc.snapshot.source_reader import Readable, at_snapshot, lines, lock, tuples
from cdc.snapshot.table_description import describe_tables
from cdc.tables.recorded_state import TableStates
from cdc.tables.resolver import TableResolver
from tests.golden.documented import read_examples, read_setup
from tests.harness.postgres.database import Database

Rows = list[tuple[bytes, bytes]]


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    with connect(database.dsn) as connection:
        connection.execute(read_setup().encode())
        connection.execute("SELECT pg_create_logical_replication_slot('both_' || pg_backend_pid(), 'pgoutput', true)")
        yield connection


def make_config(database: Database, more: str = "") -> Config:
    kafka = '[kafka]\nbootstrap = "h:1"\nprefix = "p"\n'
    text = f'[source]\ndsn = "{database.dsn}"\npublication = "two_ways"\n{kafka}{more}'
    return parse_config(text, file=Path("tailrace.toml"), environment={})


def streamed(connection: psycopg.Connection, config: Config) -> Rows:
    """(key, row) of every insert so far, as capture makes them."""
    stream = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('both_' || pg_backend_pid(), NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'two_ways')"
    ).fetchall()
    tables = {}
    rows = []
    for (data,) in stream:
        message = decode_message(bytes(data))
        if isinstance(message, Relation):
            tables[message.oid] = TableResolver(config, connection).table_for(message, TableStates(tables={}), ())
        elif isinstance(message, Insert):
            table = tables[message.relation_oid]
            assert table is not None
            rows.append((table.encode_key(message.new), table.encode_row(message.new)))
    return rows


def copied(connection: psycopg.Connection, config: Config, table: str) -> Rows:
    """(key, row) of every row in the table, as a snapshot makes them, the same for each way to read."""
    (oid,) = connection.execute("SELECT %s::regclass::oid::text", [table]).fetchone() or ("",)
    found: Rows = []
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        with at_snapshot(config.source.conninfo(), snapshot) as reader:
            described = describe_tables(reader, config, [oid])[oid]
            for leaf in described.leaves:
                encoder = LineEncoder(described.table(leaf.relation), b"", b"")
                readable = lock(reader, described, leaf, encoder.columns)
                assert isinstance(readable, Readable)
                piece = BlockRange(table=oid, relation=leaf.relation.oid, first_block=0, end_block=None)
                rows = [
                    row for block in lines(reader, readable, piece, encoder.columns) for row in encoder.encode(block)
                ]
                if READS_TUPLES:
                    read = tuples(reader, readable, piece, encoder.columns, encoder.types)
                    assert [row for block in read for row in encoder.encode_tuples(block)] == rows
                found += rows
    return found


def make_wide_table(connection: psycopg.Connection) -> list[str]:
    """One row with every value of docs/reference/types.md and one of NULLs; returns the types."""
    major = connection.info.server_version // 10000
    examples = [example for example in read_examples() if example.since <= major]
    columns = ", ".join(f"v{number} {example.type}" for number, example in enumerate(examples))
    connection.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})".encode())
    connection.execute("CREATE PUBLICATION two_ways FOR TABLE wide")
    values = ", ".join(f"({example.sql})::{example.type}" for example in examples)
    connection.execute(f"INSERT INTO wide VALUES (1, {values})".encode())
    connection.execute("INSERT INTO wide (id) VALUES (2)")
    return [example.type for example in examples]


def test_every_documented_type(connection: psycopg.Connection, database: Database) -> None:
    """Snapshot and stream agree for every value of docs/reference/types.md, and NULL of each type."""
    types = make_wide_table(connection)
    config = make_config(database)
    assert len(types) > 150
    rows = streamed(connection, config)
    assert len(rows) == 2
    assert copied(connection, config, "wide") == rows


def test_masked_and_chosen_columns(connection: psycopg.Connection, database: Database) -> None:
    """Snapshot and stream give the same hashes, and neither has an unlisted column."""
    types = make_wide_table(connection)
    masks = "".join(f'"public.wide.v{number}" = "hash"\n' for number in range(0, len(types), 3))
    masks += "".join(f'"public.wide.v{number}" = "null"\n' for number in range(1, len(types), 7) if number % 3)
    chosen = ", ".join(f'"v{number}"' for number in range(len(types)) if number % 5)
    config = make_config(
        database,
        f'[capture]\nmask_salt = "salt"\n[mask]\n"public.wide.id" = "hash"\n{masks}'
        f'[columns]\n"public.wide" = ["id", {chosen}]\n',
    )
    rows = streamed(connection, config)
    assert len(rows) == 2
    assert copied(connection, config, "wide") == rows


def test_odd_names_partitions_and_generated_columns(connection: psycopg.Connection, database: Database) -> None:
    """Snapshot and stream agree for partitions with another column order, quoted names and generated columns."""
    connection.execute(
        'CREATE TABLE "Odd;--" ("a""b" int, "c%%d" text, gone int, twice int GENERATED ALWAYS AS ("a""b" * 2) STORED,'
        ' PRIMARY KEY ("c%%d", "a""b")) PARTITION BY RANGE ("a""b")'
    )
    connection.execute('CREATE TABLE low PARTITION OF "Odd;--" FOR VALUES FROM (0) TO (10)')
    connection.execute(
        'CREATE TABLE high ("c%%d" text NOT NULL, x int, twice int GENERATED ALWAYS AS ("a""b" * 2) STORED,'
        ' gone int, "a""b" int NOT NULL)'
    )
    connection.execute("ALTER TABLE high DROP COLUMN x")
    connection.execute('ALTER TABLE "Odd;--" ATTACH PARTITION high FOR VALUES FROM (10) TO (20)')
    connection.execute('ALTER TABLE "Odd;--" DROP COLUMN gone')
    generated = "WITH (publish_generated_columns = stored)" if connection.info.server_version >= 180000 else ""
    connection.execute(f'CREATE PUBLICATION two_ways FOR TABLE "Odd;--" {generated}'.encode())
    connection.execute(
        """INSERT INTO "Odd;--" VALUES (1, E'back\\\\slash\\ttab\\nline \\\\N'), (11, ''), (12, '\\N')"""
    )
    config = make_config(database)
    rows = streamed(connection, config)
    assert len(rows) == 3
    assert copied(connection, config, '"Odd;--"') == rows


def test_what_the_publication_filters(connection: psycopg.Connection, database: Database) -> None:
    """A snapshot leaves out the rows and columns that a publication filters out."""
    connection.execute("CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('good', 'bad')")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text, m s.mood)")
    connection.execute("CREATE PUBLICATION two_ways FOR TABLE t (id, v, m) WHERE (id > 1 AND id < 4 OR id = 5)")
    connection.execute("INSERT INTO t SELECT i, 'v', 'w', 'good' FROM generate_series(1, 6) i")
    config = make_config(database, "")
    rows = streamed(connection, config)
    assert len(rows) == 3
    assert copied(connection, config, "t") == rows

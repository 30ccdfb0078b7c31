"""A snapshot reads a table only if it is still as the exported snapshot shows it, and reports every change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc.config import Config, parse_config
from cdc.errors import RefusedError, TransientError
from cdc.snapshot import source_reader
from cdc.snapshot.locked_pieces import lock_pieces
from cdc.snapshot.records import BlockRange, ChunkState
from cdc.snapshot.source_reader import CHANGED, GONE, REWRITTEN, Readable, SnapshotLostError, at_snapshot, lines, lock
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.startup.initial_snapshot import read_tables_in_snapshot
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.recorded_state import why_incomplete
from tests.harness.postgres.database import Connection, Database

COLUMNS = ("id", "v", "n")


@pytest.fixture
def exporter(database: Database) -> Connection:
    """A session like capture's that exports a snapshot; `t` has 1000 rows in it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n int, other text)")
    database.execute("INSERT INTO t SELECT i, repeat('x', 50), i, 'o' FROM generate_series(1, 1000) i")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    connection = database.connect()
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    return connection


@pytest.fixture
def snapshot(exporter: Connection) -> str:
    ((name,),) = exporter.execute("SELECT pg_export_snapshot()").fetchall()
    return str(name)


@pytest.fixture
def reader(database: Database, snapshot: str) -> Iterator[psycopg.Connection]:
    with at_snapshot(database.dsn, snapshot) as connection:
        yield connection


@pytest.fixture
def config(database: Database) -> Config:
    return parse_config(
        f'[source]\ndsn = "{database.dsn}"\n[kafka]\nbootstrap = "h:1"\nprefix = "p"\n',
        file=Path("tailrace.toml"),
        environment={},
    )


@pytest.fixture
def table(config: Config, reader: psycopg.Connection) -> DescribedTable:
    ((oid,),) = reader.execute("SELECT 't'::regclass::oid::text").fetchall()
    return describe_tables(reader, config, [oid])[oid]


def found(reader: psycopg.Connection, table: DescribedTable) -> Readable | str:
    return lock(reader, table, table.leaves[0], COLUMNS)


def ids(reader: psycopg.Connection, readable: Readable, first: int = 0, end: int | None = None) -> list[int]:
    piece = BlockRange(table="1", relation=readable.leaf.relation.oid, first_block=first, end_block=end)
    return [int(line.split(b"\t")[0]) for block in lines(reader, readable, piece, COLUMNS) for line in block]


def test_rows_are_those_of_the_snapshot(database: Database, reader: psycopg.Connection, table: DescribedTable) -> None:
    """The rows are those of the exported snapshot in spite of later changes, and block ranges give each row once."""
    database.execute("DELETE FROM t WHERE id <= 300; UPDATE t SET n = -1; INSERT INTO t VALUES (2000, '', 1, '')")
    database.execute("VACUUM t")
    readable = found(reader, table)
    assert isinstance(readable, Readable)
    every = [number for first in range(0, 30, 3) for number in ids(reader, readable, first, first + 3)]
    assert sorted(every) == list(range(1, 1001))
    assert sorted(ids(reader, readable)) == list(range(1, 1001))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("VACUUM FULL t", REWRITTEN),
        ("TRUNCATE t", REWRITTEN),
        ("ALTER TABLE t ALTER n TYPE bigint", REWRITTEN),
        ("CLUSTER t USING t_pkey", REWRITTEN),
        ("ALTER TABLE t DROP COLUMN v", CHANGED),
        ("ALTER TABLE t RENAME COLUMN v TO w", CHANGED),
        ("ALTER TABLE t ALTER v TYPE varchar", CHANGED),
        ("DROP TABLE t", GONE),
        ("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text, n int)", GONE),
        (
            "ALTER TABLE t RENAME COLUMN v TO w; ALTER TABLE t RENAME COLUMN other TO v;"
            " ALTER TABLE t RENAME COLUMN w TO other",
            CHANGED,
        ),
    ],
)
def test_a_table_that_is_no_longer_what_it_was_is_left_out(
    database: Database, reader: psycopg.Connection, table: DescribedTable, statement: str, reason: str
) -> None:
    """After these changes the snapshot would show too few rows or wrong values, so the table is left out."""
    for each in statement.split(";"):
        database.execute(each)
    assert found(reader, table) == reason


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "ALTER TABLE t RENAME TO renamed",
        "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s",
        "ALTER TABLE t DROP COLUMN other",
        "CREATE INDEX ON t (n); ANALYZE t; VACUUM t",
    ],
)
def test_a_change_that_does_not_touch_what_is_read_does_not_matter(
    database: Database, reader: psycopg.Connection, table: DescribedTable, statement: str
) -> None:
    """Other changes do not stop the reading, which uses the names of the snapshot's moment."""
    for each in statement.split(";"):
        database.execute(each)
    readable = found(reader, table)
    assert isinstance(readable, Readable)
    assert len(ids(reader, readable)) == 1000


def test_a_lock_of_others_is_waited_for(
    database: Database, reader: psycopg.Connection, table: DescribedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader waits for a rewrite in short attempts and notices it."""
    reader.execute("SET lock_timeout = 50")
    other = database.connect()
    other.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE; TRUNCATE t")
    tries = []
    present = source_reader._present

    def count(*arguments: object) -> tuple[str | None, int | None]:
        tries.append(1)
        if len(tries) == 3:
            other.execute("COMMIT")
        return present(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(source_reader, "_present", count)
    assert found(reader, table) == REWRITTEN
    assert len(tries) == 4


def test_a_snapshot_whose_session_ended_is_lost(database: Database, exporter: Connection, snapshot: str) -> None:
    """An exported snapshot whose session has ended is reported as lost and not retried."""
    with at_snapshot(database.dsn, snapshot) as reader:
        exporter.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(1000,)]  # ours is alive, being imported
    with pytest.raises(SnapshotLostError), at_snapshot(database.dsn, snapshot):
        pass


def test_a_table_that_may_not_be_read_is_refused_with_the_remedy(
    database: Database, snapshot: str, reader: psycopg.Connection, table: DescribedTable
) -> None:
    """A table without SELECT is refused with the GRANT as the remedy, and not retried."""
    role = f"reader_{database.name[-8:]}"
    database.execute(f"CREATE ROLE {role}")
    try:
        reader.execute(f"SET ROLE {role}".encode())
        with pytest.raises(RefusedError, match="grant select"):
            found(reader, table)
    finally:
        reader.execute("RESET ROLE")
        database.execute(f"DROP ROLE {role}")


def test_what_is_altered_right_after_the_snapshot_is_noticed(database: Database, config: Config, snapshot: str) -> None:
    """A column added right after the snapshot is noticed, because capture compares catalogs of the same moment."""
    database.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7")
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::text")
    seen = read_tables_in_snapshot(config, snapshot, [oid])
    assert [column.name for column in seen.described[oid].relation.columns] == ["id", "v", "n", "other"]
    assert seen.filled == {oid}
    now = read_catalog_states(database.connect(), [oid], prefix="p")[oid]
    assert why_incomplete(seen.states[oid], now) == "column more was added with a default"


def test_a_row_filter_is_that_of_the_table_not_of_its_name(
    database: Database, config: Config, exporter: Connection, reader: psycopg.Connection
) -> None:
    """Two tables that swapped names since the snapshot keep their own row filters and columns."""
    database.execute("DROP PUBLICATION tailrace")
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t (id, n) WHERE (id > 5), u (id) WHERE (id > 7)")
    with database.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((taken,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        oids = dict(
            connection.execute("SELECT relname, oid::text FROM pg_class WHERE relname IN ('t', 'u')").fetchall()
        )
        for statement in ("t RENAME TO w", "u RENAME TO t", "w RENAME TO u"):
            database.execute(f"ALTER TABLE {statement}")
        with at_snapshot(database.dsn, taken) as later:
            tables = describe_tables(later, config, oids.values())
    seen = {
        name: (tables[oid].leaves[0].row_filter, [column.name for column in tables[oid].relation.columns])
        for name, oid in oids.items()
    }
    assert seen == {"t": ("(id > 5)", ["id", "n"]), "u": ("(id > 7)", ["id"])}


def test_long_rows_are_read_a_few_at_a_time(
    database: Database, reader: psycopg.Connection, table: DescribedTable
) -> None:
    """Memory is limited by bytes, not by the rows of a block."""
    query = sql.SQL("copy (select repeat('x', 300000) from generate_series(1, 40)) to stdout")
    blocks = [[len(line) for line in block] for block in source_reader.copy_out(reader, query)]
    assert sum(map(len, blocks)) == 40
    assert max(map(sum, blocks)) < 1_500_000
    short = sql.SQL("copy (select generate_series(1, 1201)) to stdout")
    assert [len(block) for block in source_reader.copy_out(reader, short)] == [500, 500, 201]


def test_a_reader_that_cannot_get_all_locks_releases_those_it_has(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that cannot lock every table releases its locks, so that no migration waits for it."""
    monkeypatch.setattr(source_reader, "_LOCK_TRY_MS", 200)
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    rows = database.execute(
        "SELECT oid::text, oid::int8, relfilenode::int8 FROM pg_class WHERE relname IN ('a', 'b') ORDER BY relname"
    )
    pieces = [BlockRange(table=oid, relation=relation, first_block=0, end_block=None) for oid, relation, _ in rows]
    chunk = ChunkState(copy="c", number=0, pieces=pieces, size_bytes=0)
    with database.connect(autocommit=False) as migration:
        migration.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
        with at_snapshot(database.dsn, None) as connection:
            tables = describe_tables(connection, config, [oid for oid, _, _ in rows])
            with pytest.raises(TransientError, match=r"public\.b is locked by other sessions"):
                lock_pieces(connection, chunk, tables, lambda _: (b"", b""))
        migration.rollback()


def test_blocks_of_another_storage_are_not_read(database: Database, config: Config) -> None:
    """A resumed snapshot does not read blocks of a table that VACUUM FULL rewrote or a detached partition."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)")
    database.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (9) TO (99)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE a, p")
    oids = dict(database.execute("SELECT relname, oid::text FROM pg_class WHERE relname IN ('a', 'p')"))
    with psycopg.connect(database.dsn) as connection:
        planned = describe_tables(connection, config, oids.values())
    pieces = [
        BlockRange(table=oid, relation=leaf.relation.oid, first_block=0, end_block=None, storage=leaf.storage)
        for oid, table in planned.items()
        for leaf in table.leaves
    ]
    database.execute("VACUUM FULL a")
    database.execute("DROP TABLE p2")
    with at_snapshot(database.dsn, None) as connection:
        tables = describe_tables(connection, config, oids.values())
        chunk = ChunkState(copy="c", number=0, pieces=pieces, size_bytes=0)
        locked, left_out = lock_pieces(connection, chunk, tables, lambda _: (b"", b""))
    assert (locked, left_out) == ([], {oids["a"]: REWRITTEN, oids["p"]: GONE})

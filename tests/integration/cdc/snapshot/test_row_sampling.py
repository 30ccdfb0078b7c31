"""Sampled rows decide how a table is read and published; without a sample the defaults apply."""

from __future__ import annotations

from pathlib import Path

from cdc.config import parse_config
from cdc.snapshot.records import BlockRange, ChunkState
from cdc.snapshot.row_sampling import ReadOptions, choose_read_options
from cdc.snapshot.source_reader import at_snapshot
from cdc.snapshot.table_description import describe_tables
from tests.harness.postgres.database import Database

TABLES = {
    "digests": "(SELECT string_agg(md5((i * 128 + part)::text), '') FROM generate_series(1, 125) AS part)",
    "prose": "repeat('A few words that say much the same as all the others, as people''s words do. ' || i, 50)",
    "short": "'customer ' || i",
    "locked": "md5(i::text)",
}
LARGE = 64 << 20


def test_long_rows_are_read_unescaped_and_what_does_not_compress_is_left_as_it_is(database: Database) -> None:
    """A table with long rows is read unescaped, and one that does not compress is published uncompressed."""
    for name, value in TABLES.items():
        database.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, body text)")
        database.execute(f"INSERT INTO {name} SELECT i, {value} FROM generate_series(1, 200) AS i")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    config = parse_config(
        f'[source]\ndsn = "{database.dsn}"\n[kafka]\nbootstrap = "h:1"\nprefix = "p"\n',
        file=Path("tailrace.toml"),
        environment={},
    )
    oids = {name: str(database.execute(f"SELECT '{name}'::regclass::oid::int8")[0][0]) for name in TABLES}

    def chunk(*names: str, size: int = LARGE) -> ChunkState:
        pieces = [
            BlockRange(table=oids[name], relation=int(oids[name]), first_block=0, end_block=None) for name in names
        ]
        return ChunkState(copy="c", number=0, pieces=pieces, size_bytes=size)

    holder = database.connect()
    with at_snapshot(database.dsn, None) as connection:
        tables = describe_tables(connection, config, oids.values())
        holder.execute("BEGIN; LOCK TABLE locked")
        connection.execute("SET lock_timeout = '100ms'")
        assert choose_read_options(connection, tables, [chunk(name) for name in TABLES]) == {
            oids["digests"]: ReadOptions(compress=False, as_tuples=True),
            oids["prose"]: ReadOptions(compress=True, as_tuples=True),
        }
        assert choose_read_options(connection, tables, [chunk("digests", size=1000), chunk("digests", "prose")]) == {}
    holder.execute("ROLLBACK")

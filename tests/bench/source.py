"""The database that is read: its settings, its tables, and the backlogs that are written into it.

Nothing here is measured; a backlog is written without waiting for the disk, and made durable as a whole afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.lsn import LSN

Connection = psycopg.Connection[tuple[Any, ...]]

PUBLICATION: Final = "bench"
FINISH: Final = "finish"
ROWS_PER_SMALL_TRANSACTION: Final = 10
ROWS_PER_UPDATE_TRANSACTION: Final = 100

# Durable as in production. No checkpoint and no vacuum in the middle: they would hit one reader and not another.
POSTGRES_SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}

_SIX_COLUMNS = (
    "(id bigint PRIMARY KEY, customer text, email text, amount numeric(12,2), created timestamptz, active boolean)"
)
_SIX_VALUES = "i, 'customer name ' || i, 'customer' || i || '@example.com', i * 1.25, now(), mod(i, 2) = 0"

_TABLES = f"""
CREATE TABLE orders {_SIX_COLUMNS};
CREATE TABLE lines {_SIX_COLUMNS};
CREATE TABLE ticks {_SIX_COLUMNS};
CREATE TABLE documents (id bigint PRIMARY KEY, title text, body text, views integer, changed timestamptz, live boolean);
ALTER TABLE documents REPLICA IDENTITY FULL;
CREATE TABLE {FINISH} (id bigint PRIMARY KEY);
CREATE PUBLICATION {PUBLICATION} FOR TABLE orders, lines, ticks, documents, {FINISH};

CREATE PROCEDURE write_transactions(first bigint, transactions bigint, size bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN 0 .. transactions - 1 LOOP
    INSERT INTO lines SELECT {_SIX_VALUES} FROM generate_series(first + n * size, first + (n + 1) * size - 1) AS i;
    COMMIT;
  END LOOP;
END $$;

CREATE PROCEDURE update_documents(amount bigint, size bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN 0 .. (amount - 1) / size LOOP
    UPDATE documents SET views = views + 1, changed = clock_timestamp()
     WHERE id > n * size AND id <= least((n + 1) * size, amount);
    COMMIT;
  END LOOP;
END $$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """`rows` row changes of one table; `write` is given the database and how many."""

    name: str
    table: str
    rows: int
    write: Callable[[Source, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A backlog that every slot has. `finish` is the id of the row after it, `end` an LSN right after that."""

    name: str
    table: str
    rows: int
    finish: int
    end: LSN


class Source:
    """One database with the tables and the publication; every slot is made here or by its reader."""

    def __init__(self, server_dsn: str, dsn: str) -> None:
        with psycopg.connect(server_dsn, autocommit=True) as server:
            server.execute("CREATE DATABASE bench")
        self.dsn = dsn
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(_TABLES.encode())
        self._finish = 0
        self._next_id = 1

    def close(self) -> None:
        self.connection.close()

    def fill_documents(self, rows: int) -> None:
        """About 1 kB each, below the size from which Postgres compresses or moves values out of the row."""
        self.connection.execute(
            "INSERT INTO documents SELECT i, 'document ' || i,"
            " (SELECT string_agg(md5((i * 32 + part)::text), ' ') FROM generate_series(1, 28) AS part),"
            " 0, now(), true FROM generate_series(1, %s) AS i",
            [rows],
        )

    def write(self, backlog: Backlog) -> Job:
        """Write it, and two rows behind it: the first says that all was read, the second ends `pg_recvlogical`."""
        self.connection.execute("SET synchronous_commit = off")
        backlog.write(self, backlog.rows)
        self.connection.execute("SET synchronous_commit = on")
        finish = self.write_finish()
        row = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self.write_finish()
        self.connection.execute("CHECKPOINT")
        return Job(name=backlog.name, table=backlog.table, rows=backlog.rows, finish=finish, end=LSN.parse(row[0]))

    def insert_at_once(self, rows: int) -> None:
        first = self._take_ids(rows)
        self.connection.execute(
            f"INSERT INTO orders SELECT {_SIX_VALUES} FROM generate_series(%s::bigint, %s) AS i".encode(),
            [first, first + rows - 1],
        )

    def insert_in_small_transactions(self, rows: int) -> None:
        size = ROWS_PER_SMALL_TRANSACTION
        self.connection.execute("CALL write_transactions(%s, %s, %s)", [self._take_ids(rows), rows // size, size])

    def update_documents(self, rows: int) -> None:
        self.connection.execute("CALL update_documents(%s, %s)", [rows, ROWS_PER_UPDATE_TRANSACTION])

    def slot_is_streaming(self, name: str) -> bool:
        """Stricter than active: a slot is active already while it is being made."""
        row = self.connection.execute(
            "SELECT FROM pg_replication_slots AS slot JOIN pg_stat_replication AS sender"
            " ON sender.pid = slot.active_pid WHERE slot.slot_name = %s AND sender.state IN ('catchup', 'streaming')",
            [name],
        ).fetchone()
        return row is not None

    def write_finish(self) -> int:
        """A row whose arrival shows that everything before it was read; its id."""
        self._finish += 1
        self.connection.execute(f"INSERT INTO {FINISH} VALUES (%s)".encode(), [self._finish])
        return self._finish

    def create_slot(self, name: str) -> None:
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])

    def drop_slot(self, name: str) -> None:
        self.connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
        )

    def slot_is_active(self, name: str) -> bool:
        row = self.connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [name]).fetchone()
        return row is not None and bool(row[0])

    def _take_ids(self, amount: int) -> int:
        first = self._next_id
        self._next_id += amount
        return first


def backlogs(scale: float) -> list[Backlog]:
    """What every reader drains."""

    def scaled(rows: int) -> int:
        return max(1_000, int(rows * scale) // 1_000 * 1_000)

    return [
        Backlog(name="inserts", table="orders", rows=scaled(500_000), write=Source.insert_at_once),
        Backlog(name="transactions", table="lines", rows=scaled(500_000), write=Source.insert_in_small_transactions),
        Backlog(name="updates", table="documents", rows=scaled(100_000), write=Source.update_documents),
    ]

"""The database behind the stores: tables of six columns, and when their rows were committed. Nothing is measured."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import psycopg

from tests.bench.source import _SIX_COLUMNS, _SIX_VALUES


class StoreSource:
    def __init__(self, server_dsn: str, dsn: str) -> None:
        with psycopg.connect(server_dsn, autocommit=True) as server:
            server.execute("CREATE DATABASE bench")
        self.dsn = dsn
        self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> StoreSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def create(self, table: str) -> None:
        self._connection.execute(f"CREATE TABLE {table} {_SIX_COLUMNS}".encode())

    def fill(self, table: str, rows: int) -> None:
        """In one transaction, with the ids 1 to `rows`."""
        self._connection.execute(
            f"INSERT INTO {table} SELECT {_SIX_VALUES} FROM generate_series(1, {rows}) AS i".encode()
        )
        self._connection.execute(f"VACUUM {table}".encode())

    def insert(self, table: str, row_id: int) -> None:
        self.append(table, row_id, 1)

    def append(self, table: str, first_id: int, rows: int) -> None:
        """In one transaction."""
        ids = f"generate_series({first_id}, {first_id + rows - 1}) AS i"
        self._connection.execute(f"INSERT INTO {table} SELECT {_SIX_VALUES} FROM {ids}".encode())

    def commit_times_us(self, table: str, first_id: int = 0, every: int = 1) -> dict[int, int]:
        """By id, as Postgres has it in the commit records; of every so many rows from the first one on."""
        rows = self._connection.execute(
            f"SELECT id, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM {table}"
            f" WHERE id >= {first_id} AND (id - {first_id}) % {every} = 0".encode()
        )
        return {row[0]: row[1] for row in rows}

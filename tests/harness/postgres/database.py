"""A database for one test, dropped afterwards with its slots and sessions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from cdc.lsn import LSN
from tests.harness.postgres.catalog import Table, describe
from tests.harness.processes.waiting import eventually

Connection = psycopg.Connection[tuple[Any, ...]]


class Database:
    """`dsn` is a URL; `connect` gives autocommit connections that are closed at the end of the test."""

    def __init__(self, server_url: str, label: str, *, encoding: str = "UTF8") -> None:
        readable = re.sub(r"[^a-z0-9]+", "_", label.lower())[:40]
        self.name = f"{readable}_{uuid.uuid4().hex[:8]}"
        self._server_url = server_url
        self.dsn = urlsplit(server_url)._replace(path=f"/{self.name}").geturl()
        self._connections: list[Connection] = []
        self._main: Connection | None = None
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(
                sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
                    sql.Identifier(self.name), sql.Literal(encoding)
                )
            )

    def connect(self, **settings: Any) -> Connection:
        connection: Connection = psycopg.connect(
            self.dsn, **{"autocommit": True, "client_encoding": "UTF8", **settings}
        )
        self._connections.append(connection)
        return connection

    def execute(self, query: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run the statement in a kept connection, opened again after an outage; returns the rows, if any."""
        if self._main is None or self._main.broken or self._main.closed:
            self._main = self.connect()
        cursor = self._main.execute(query, parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def forget_connection(self) -> None:
        """Close the kept connection after an outage; the next one is new."""
        if self._main is not None:
            self._main.close()

    def describe(self, *tables: str) -> list[Table]:
        with psycopg.connect(self.dsn) as connection:
            return describe(connection, *tables)

    def lsn(self) -> LSN:
        """The current end of the log: everything committed so far is before it."""
        return LSN.parse(self.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def drop(self) -> None:
        for connection in self._connections:
            connection.close()
        self._roll_back_prepared()
        with psycopg.connect(self._server_url, autocommit=True) as admin:
            eventually(lambda: self._slots_gone(admin), 20, f"the slots of {self.name} to go")
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def _slots_gone(self, admin: Connection) -> bool:
        """Whether the slots are dropped; a slot is active for a moment after its reader has gone."""
        admin.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE database = %s AND active_pid IS NOT NULL",
            (self.name,),
        )
        try:
            admin.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s AND NOT active",
                (self.name,),
            )
        except psycopg.errors.ObjectInUse:
            return False
        query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
        return admin.execute(query, (self.name,)).fetchone() == (0,)

    def _roll_back_prepared(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            for (gid,) in prepared.fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

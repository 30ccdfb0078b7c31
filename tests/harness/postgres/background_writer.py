"""A client that writes small transactions on one table in the background, from a seed."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Final

import psycopg

from tests.harness.postgres.database import Database
from tests.harness.processes.waiting import eventually

SCHEMA: Final = "CREATE TABLE items (id int PRIMARY KEY, grp int NOT NULL, note text)"
KEYS: Final = 500


class Writer:
    """Inserts, updates, deletes and changes keys of `items` until the block ends; a failure is raised there.

    With `survives`, lost connections are made again: for tests that stop the server. `keys`: how many there are.
    """

    def __init__(self, database: Database, *, seed: int = 1, survives: bool = False, keys: int = KEYS) -> None:
        self.transactions = 0
        self._dsn = database.dsn
        self._random = random.Random(seed)
        self._survives = survives
        self._keys = keys
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        if self._error is not None and error is None:
            raise self._error

    def wait_for_more(self, transactions: int = 50) -> None:
        goal = self.transactions + transactions
        eventually(lambda: self.transactions >= goal or not self._thread.is_alive(), 60, "more transactions")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._write()
                except psycopg.OperationalError:
                    if not self._survives:
                        raise
                    self._stop.wait(0.1)
        except BaseException as error:
            self._error = error

    def _write(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.002):
                with connection.transaction():
                    for _ in range(self._random.randint(1, 5)):
                        self._change(connection)
                self.transactions += 1

    def _change(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        choice, key, other = (
            self._random.random(),
            self._random.randrange(self._keys),
            self._random.randrange(self._keys),
        )
        note = "x" * self._random.randrange(200)
        if choice < 0.2:
            connection.execute("DELETE FROM items WHERE id = %s", [key])
        elif choice < 0.3:
            connection.execute("DELETE FROM items WHERE id = %s", [other])
            connection.execute("UPDATE items SET id = %s WHERE id = %s", [other, key])
        else:
            connection.execute(
                "INSERT INTO items VALUES (%s, %s, %s)"
                " ON CONFLICT (id) DO UPDATE SET grp = items.grp + 1, note = EXCLUDED.note",
                [key, key % 7, note],
            )

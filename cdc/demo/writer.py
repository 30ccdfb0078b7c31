"""The shop's client: it writes transactions at a given rate and reconnects after an outage of the server.

It is independent of capture, and deterministic: on an empty shop, the same seed and the same number of transactions
leave the same rows, so that a failing test can be repeated.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import psycopg

from cdc.backoff import Backoff
from cdc.demo.known_ids import KnownIds, ShopChanges
from cdc.demo.transactions import choose

_ROLLBACK_SHARE: Final = 0.03
_FIRST_WAIT_SECONDS: Final = 0.2
_LONGEST_WAIT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a writer has done so far. `connected`: whether it has a connection."""

    transactions: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rolled_back: int = 0
    reconnects: int = 0
    connected: bool = False

    @property
    def rows(self) -> int:
        """The number of changed rows."""
        return self.inserted + self.updated + self.deleted


class _ChangedItsMind(Exception):  # noqa: N818 - not an error: it makes psycopg roll back
    pass


class ShopWriter:
    """Writes to the shop. `rate`: transactions per second; 0 means without a pause."""

    def __init__(self, dsn: str, seed: int = 1, rate: float = 20.0) -> None:
        self._dsn = dsn
        self._rate = rate
        self._random = Random(seed)  # noqa: S311 - repeatable rows, not secrets
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._known_ids = KnownIds()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.counts = Counts()

    def write(self, transactions: int) -> None:
        """Write this many transactions in the calling thread. Raises an error if the connection breaks."""
        for _ in range(transactions):
            self._write_one()

    def start(self) -> None:
        """Start a thread that writes until `stop`."""
        self._thread = threading.Thread(target=self._run_and_keep_failure, name="shop-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the current transaction and disconnect. Raises the error that ended the writer early, if any."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.counts = replace(self.counts, connected=False)

    def run(self) -> None:
        """Write at the rate until stopped. While the server is down, retry with increasing pauses."""
        backoff = Backoff(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self._write_one()
            except psycopg.OperationalError:
                self.close()
                self.counts = replace(self.counts, reconnects=self.counts.reconnects + 1)
                self._stop.wait(backoff.next_delay())
                due = time.monotonic()
                continue
            backoff.reset()
            if self._rate > 0:
                # Count from the last due time, so that the writer catches up after a slow transaction. The limit of
                # one second prevents a burst after a long stall.
                due = max(due + 1 / self._rate, time.monotonic() - 1)
                self._stop.wait(max(0.0, due - time.monotonic()))

    def _run_and_keep_failure(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self._failure = failure
            self.close()

    @property
    def failed(self) -> bool:
        """Whether an error has ended the writer."""
        return self._failure is not None

    def _write_one(self) -> None:
        connection = self._connect()
        transaction = choose(self._random, self._known_ids)
        give_up = self._random.random() < _ROLLBACK_SHARE
        try:
            with connection.transaction(), connection.cursor() as cursor:
                changes = transaction(cursor, self._random, self._known_ids)
                if give_up:
                    raise _ChangedItsMind
        except _ChangedItsMind:
            self.counts = replace(self.counts, rolled_back=self.counts.rolled_back + 1)
        except (psycopg.IntegrityError, psycopg.errors.TransactionRollback):
            # Another client has changed the shop too, so the tracked ids are out of date.
            self.counts = replace(self.counts, rolled_back=self.counts.rolled_back + 1)
            self._poll_all(connection)
        else:
            self._known_ids.fold(changes)
            self._count(changes)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
                self._dsn, autocommit=True, connect_timeout=5, application_name="tailrace-shop"
            )
            self._connection = connection
            self._poll_all(connection)
            self.counts = replace(self.counts, connected=True)
        return self._connection

    def _poll_all(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        with connection.cursor() as cursor:
            self._known_ids = KnownIds.read(cursor)

    def _count(self, changes: ShopChanges) -> None:
        counts = self.counts
        self.counts = replace(
            counts,
            transactions=counts.transactions + 1,
            inserted=counts.inserted + changes.inserted,
            updated=counts.updated + changes.updated,
            deleted=counts.deleted + changes.deleted,
        )

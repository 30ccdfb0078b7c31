"""The heartbeat: a small logical message every few seconds, and an early warning that the server is stopping.

It moves the slot on an idle database and makes lag measurable when nobody writes. Its own ordinary session is the first
to hear of a shutdown (the server ends ordinary sessions before walsenders, and then waits for the walsenders to catch
up): capture lets go at once then, so that a server is never held up, also when Kafka is down.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable

import psycopg

from cdc.errors import TailraceError
from cdc.logical_messages.signed import OWN_PREFIX, emit_signed

PREFIX = OWN_PREFIX + "heartbeat"


class Heartbeat:
    """A thread of its own, with its own connection: a server that hangs must not block the stream."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection], *, slot: str, secret: bytes, interval_seconds: float
    ) -> None:
        self._connect = connect
        self._secret = secret
        self._slot = slot
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self.server_lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        try:
            with self._connect() as connection:
                # Never wait for a synchronous standby: a heartbeat that hangs would look like a dead server.
                connection.execute("set synchronous_commit = off")
                while not self._stopped.is_set():
                    self._beat(connection)
                    self._rest(connection)
        except (psycopg.Error, TailraceError, OSError):
            self.server_lost.set()

    def _beat(self, connection: psycopg.Connection) -> None:
        beat(connection, self._secret, self._slot)

    def _rest(self, connection: psycopg.Connection) -> None:
        """Until the next beat, looking at the socket: bytes on an idle session mean that the server ends it."""
        until = time.monotonic() + self._interval_seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([connection.fileno()], [], [], min(left, 0.5))
            if readable:
                connection.pgconn.consume_input()
                connection.execute("select 1")  # raises if it was the end, harmless if it was a notice


def beat(connection: psycopg.Connection, secret: bytes, slot: str) -> None:
    """One heartbeat, for a caller that needs the stream to move now."""
    content = json.dumps({"slot": slot, "ts_us": time.time_ns() // 1000})
    emit_signed(connection, secret, PREFIX, content.encode("ascii"))

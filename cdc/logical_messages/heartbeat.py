"""The heartbeat: writes a small logical message every few seconds, and detects that the server shuts down.

The heartbeat advances the slot on an idle database, and makes lag measurable when no application writes. Its ordinary
session is the first to notice a shutdown: the server ends ordinary sessions before walsenders, and then waits for the
walsenders to catch up. Capture then closes the replication connection at once. So capture never delays a shutdown, not
even while Kafka is down.
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
    """Writes heartbeats in its own thread with its own connection, so that a server that hangs cannot block the stream.

    It sets `server_lost` when the connection fails.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        *,
        slot: str,
        secret: bytes,
        interval_seconds: float,
        server_lost: threading.Event,
    ) -> None:
        self._connect = connect
        self._secret = secret
        self._slot = slot
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._server_lost = server_lost
        self._thread = threading.Thread(target=self._run, name="tailrace-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        try:
            with self._connect() as connection:
                # Do not wait for a synchronous standby: a heartbeat that hangs would look like a failed server.
                connection.execute("set synchronous_commit = off")
                while not self._stopped.is_set():
                    self._beat(connection)
                    self._rest(connection)
        except (psycopg.Error, TailraceError, OSError):
            self._server_lost.set()

    def _beat(self, connection: psycopg.Connection) -> None:
        beat(connection, self._secret, self._slot)

    def _rest(self, connection: psycopg.Connection) -> None:
        """Wait for the next heartbeat and watch the socket: bytes on an idle session mean that the server ends it."""
        until = time.monotonic() + self._interval_seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([connection.fileno()], [], [], min(left, 0.5))
            if readable:
                connection.pgconn.consume_input()
                connection.execute("select 1")  # raises if the server ended the session; harmless after a notice


def beat(connection: psycopg.Connection, secret: bytes, slot: str) -> None:
    """Write one heartbeat, for a caller that needs the stream to advance now."""
    content = json.dumps({"slot": slot, "ts_us": time.time_ns() // 1000})
    emit_signed(connection, secret, PREFIX, content.encode("ascii"))

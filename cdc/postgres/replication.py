"""The replication connection, on libpq through `psycopg.pq`.

`pump` reads from and writes to the connection, and never blocks on Kafka. It reads ahead into a bounded buffer and
sends a status update whenever one is due. The server therefore gets a reply to its keepalives even while Kafka is slow.
Once the buffer is full, `pump` stops reading, the TCP buffers fill up, and the walsender waits. This is the
backpressure.
"""

from __future__ import annotations

import fcntl
import select
import selectors
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import psycopg
from psycopg import pq, sql

from cdc.errors import RefusedError, TransientError
from cdc.lsn import LSN
from cdc.pgoutput.decoder import HEAD_BYTES
from cdc.postgres.connection import connect, explain

_KEEPALIVE = struct.Struct("!xQqB")
_STATUS = struct.Struct("!cQQQqB")
_POSTGRES_EPOCH_SECONDS = 946_684_800
_COPY_NOTHING_YET, _COPY_ENDED = 0, -1
# SQLSTATE classes of errors that recur every time the server decodes the same WAL: values that it cannot send
# (22: bytes that are not valid UTF-8), and exceeded program limits (54).
_PERMANENT = ("22", "54")

# Limit of the read-ahead buffer: large enough that capture never waits for bytes that the server has sent already.
READ_AHEAD_BYTES = 1 << 20
# Limit of one `pump`: small enough that the bytes may still be in the processor's cache when capture handles them.
READ_BATCH_BYTES = 256 << 10
_MESSAGE_COST_BYTES = 100  # memory of the Python objects, in addition to the message's bytes
STATUS_SECONDS = 1.0
SILENCE_SECONDS = 30.0
# Limits of an incomplete message: the lowest rate, once it takes longer than SILENCE_SECONDS to arrive, and the largest
# size that Postgres can produce. Beyond them the message's length field is wrong, and libpq would read all that follows
# as part of the message.
_SLOWEST_BYTES_PER_SECOND = 1024
_LARGEST_MESSAGE_BYTES = (1 << 30) + (1 << 20)
WAITING_FIRST_SECONDS, WAITING_AGAIN_SECONDS = 2.0, 15.0


class SlotInUse(Exception):  # noqa: N818 - not an error: capture becomes a standby
    """Another session uses the slot."""


class CreatedSlot(NamedTuple):
    """A new slot: it streams transactions that commit after `point`; `snapshot` shows those that committed before."""

    point: LSN
    snapshot: str


class _ReadBatch:
    """Messages of one read, or of several short reads. `size` is in bytes and includes the cost of the objects."""

    __slots__ = ("items", "size")

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.size = 0


class ReplicationStream:
    """The replication stream (COPY BOTH) of one slot.

    `is_started`: the server streams. `confirm` only stores the LSN. The next status update sends it to the server.
    """

    def __init__(self, conninfo: str, *, slot: str, publication: str, stop: Callable[[], bool]) -> None:
        self._connection = connect(conninfo, replication="database", application_name=f"tailrace capture {slot}")
        self.is_started = False
        self._pgconn: pq.abc.PGconn = self._connection.pgconn
        self._slot = slot
        self._stop = stop
        self._publication = publication
        self._selector = selectors.DefaultSelector()
        self._wakes = selectors.DefaultSelector()  # the descriptors of `watch` only, without the socket
        self._read_batches: deque[_ReadBatch] = deque()
        self._buffered_bytes = 0  # of all turns
        self._received = 0
        self._confirmed = 0
        self._holds_confirmations = False
        self._held_lsn = LSN(0)
        self._sent_at = 0.0
        self._last_received_at = time.monotonic()
        self._partial_message_bytes = 0  # received since the last complete message
        self._part_since = 0.0

    def identify(self) -> tuple[str, int]:
        """Return (system identifier, timeline) of the server."""
        result = self._command(b"IDENTIFY_SYSTEM")
        return (result.get_value(0, 0) or b"").decode(), int(result.get_value(0, 1) or b"0")

    def forked_at(self, timeline: int, old: int) -> LSN | None:
        """Return the LSN at which the history of `timeline` branched off `old`; None if `old` is not in its history."""
        return self.forks(timeline).get(old)

    def forks(self, timeline: int) -> dict[int, LSN]:
        """Return the ancestors of `timeline` with the LSN at which it left each of them. Timeline 1 has none."""
        if timeline <= 1:
            return {}
        history = (self._command(b"TIMELINE_HISTORY %d" % timeline).get_value(0, 1) or b"").decode()
        lines = [line.split("\t") for line in history.splitlines() if line.strip() and not line.startswith("#")]
        return {int(fields[0]): LSN.parse(fields[1].strip()) for fields in lines}

    def create_slot(self, waiting: Callable[[], None] = lambda: None, *, export: bool = False) -> CreatedSlot:
        """Create the slot. With `export`, also export the snapshot of its consistent point.

        Postgres waits for every open transaction to end first. While it does, `waiting` is called after 2 s and then
        every 15 s. The snapshot stays valid until the next command on this connection.
        """
        if export:
            self._disable_timeouts()
        # Standby servers that synchronise slots copy a failover slot, so that capture can continue after a promotion.
        failover = ", FAILOVER true" if self._pgconn.server_version >= 170000 else ""
        settings = f"(SNAPSHOT '{'export' if export else 'nothing'}'{failover})"
        if self._pgconn.server_version < 150000:
            settings = "EXPORT_SNAPSHOT" if export else "NOEXPORT_SNAPSHOT"
        command = sql.SQL(f"CREATE_REPLICATION_SLOT {{}} LOGICAL pgoutput {settings}").format(
            sql.Identifier(self._slot)
        )
        result = self._command(command.as_bytes(self._connection), waiting=waiting)
        return CreatedSlot(
            LSN.parse((result.get_value(0, 1) or b"").decode()), (result.get_value(0, 2) or b"").decode()
        )

    def check_idle(self) -> None:
        """Raise TransientError if the connection is lost, and with it the snapshot that it exported."""
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise TransientError(f"The connection that holds the snapshot broke: {explain(error)}") from error

    def _disable_timeouts(self) -> None:
        """Disable the session's timeouts, because it idles in a transaction until the initial snapshot is complete."""
        names = ["idle_in_transaction_session_timeout", "idle_session_timeout"]
        if self._pgconn.server_version >= 170000:
            names.append("transaction_timeout")
        for name in names:
            self._command(f"SET {name} = 0".encode(), pq.ExecStatus.COMMAND_OK)

    def start(self) -> None:
        """Acquire the slot and start streaming. Raises SlotInUse if another session uses the slot."""
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, messages 'true')"
        ).format(sql.Identifier(self._slot), sql.Literal(sql.Identifier(self._publication).as_string(None)))
        self._command(command.as_bytes(self._connection), pq.ExecStatus.COPY_BOTH)
        self.is_started = True
        self._pgconn.nonblocking = 1
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._last_received_at = time.monotonic()

    def watch(self, descriptor: int) -> None:
        """Make `pump` return when this file descriptor becomes readable, too. Its owner must drain it."""
        if descriptor in self._wakes.get_map():
            return
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._wakes.register(descriptor, selectors.EVENT_READ)

    def take(self) -> list[bytes]:
        """Return the next turn in stream order: messages with their heads, and keepalives (see `sent_up_to`).

        It returns one turn and not the whole buffer, because a turn that capture is handling takes memory in addition
        to the bytes that `pump` reads ahead meanwhile.
        """
        if not self._read_batches:
            return []
        turn = self._read_batches.popleft()
        self._buffered_bytes -= turn.size
        return turn.items

    def pump(self, timeout_seconds: float) -> bool:
        """Wait for bytes or a watched descriptor, read the available bytes, and send a status update if one is due.

        It waits `timeout_seconds` at most. Returns True if `take` has something to return.
        """
        full = self._buffered_bytes >= READ_AHEAD_BYTES
        if not full and not self._read_available():
            ready = self._selector.select(min(timeout_seconds, STATUS_SECONDS))
            if any(key.fd == self._pgconn.socket for key, _ in ready):
                self._note_partial_message()
            self._fill_batch()
        elif full:
            self._last_received_at = time.monotonic()  # our buffer is full, so the silence is not the server's fault
            self._partial_message_bytes = 0
            self._wakes.select(min(timeout_seconds, STATUS_SECONDS))
        self.send_status_if_due()
        return bool(self._read_batches)

    def send_status_if_due(self) -> None:
        """Send a status update if one is due. Raises TransientError if the server has sent nothing for too long."""
        now = time.monotonic()
        if now - self._sent_at >= STATUS_SECONDS:
            silent_seconds = now - self._last_received_at
            if silent_seconds > SILENCE_SECONDS:
                raise TransientError(f"Postgres has sent nothing for {silent_seconds:.0f} seconds. Capture reconnects.")
            self._check_part(now)
            self.send_status(ask=silent_seconds > SILENCE_SECONDS / 3)

    def _note_partial_message(self) -> None:
        """Count the bytes of an incomplete message, so that a large and slow one does not look like silence."""
        self._last_received_at = time.monotonic()
        if not self._partial_message_bytes:
            self._part_since = self._last_received_at
        waiting = fcntl.ioctl(self._pgconn.socket, termios.FIONREAD, bytes(4))
        self._partial_message_bytes += int.from_bytes(waiting, sys.byteorder)

    def _check_part(self, now: float) -> None:
        """Raise TransientError if an incomplete message is too slow or too large."""
        seconds = now - self._part_since
        is_slow = seconds > SILENCE_SECONDS and self._partial_message_bytes < seconds * _SLOWEST_BYTES_PER_SECOND
        if self._partial_message_bytes and (is_slow or self._partial_message_bytes > _LARGEST_MESSAGE_BYTES):
            raise TransientError(
                f"A message from Postgres is incomplete after {self._partial_message_bytes} bytes in {seconds:.0f} s: "
                "its length is wrong, or the connection is far too slow. Capture reconnects."
            )

    def hold_confirmations(self) -> None:
        """Hold back the LSNs of `confirm` from the server until `release_confirmations`."""
        self._holds_confirmations = True

    def release_confirmations(self) -> None:
        """Confirm the highest LSN that was held back, and hold back no more."""
        self._holds_confirmations = False
        self.confirm(self._held_lsn)

    def confirm(self, lsn: LSN) -> None:
        """Record that everything before `lsn` is durable in Kafka, so that the server may remove this WAL."""
        if self._holds_confirmations:
            self._held_lsn = max(lsn, self._held_lsn)
        elif lsn > self._confirmed:
            self._confirmed = lsn
            self._received = max(self._received, lsn)

    def send_status(self, *, ask: bool = False) -> None:
        """Send a status update with the received and the confirmed LSN. `ask` requests a reply from the server."""
        now_us = int((time.time() - _POSTGRES_EPOCH_SECONDS) * 1_000_000)
        status = _STATUS.pack(b"r", self._received, self._confirmed, self._confirmed, now_us, ask)
        try:
            if not self._pgconn.put_copy_data(status):
                return  # the send buffer is full: the update stays due
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error
        self._sent_at = time.monotonic()

    def close(self) -> None:
        """Close the connection, which releases the slot."""
        self._selector.close()
        self._wakes.close()
        self._connection.close()

    def _fill_batch(self) -> None:
        """Read from the socket until a turn is full or no bytes are available.

        libpq reads 16 kB at a time. Every read is followed by taking out the messages: two reads in a row would enlarge
        libpq's buffer, which never shrinks.
        """
        enough = min(self._buffered_bytes + READ_BATCH_BYTES, READ_AHEAD_BYTES)
        try:
            self._pgconn.consume_input()
            while self._read_available() and self._buffered_bytes < enough:
                self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error

    def _read_available(self) -> bool:
        """Move libpq's buffered messages into a turn. Returns False if there were none. Hot loop."""
        get_copy_data = self._pgconn.get_copy_data
        turn = (
            self._read_batches[-1]
            if self._read_batches and self._read_batches[-1].size < READ_BATCH_BYTES
            else _ReadBatch()
        )
        append = turn.items.append
        size = 0
        limit = min(READ_BATCH_BYTES, READ_AHEAD_BYTES - self._buffered_bytes)
        length = _COPY_NOTHING_YET
        while size < limit:
            length, data = get_copy_data(1)
            if length <= _COPY_NOTHING_YET:
                break
            raw = data.tobytes()
            append(raw)
            size += length + _MESSAGE_COST_BYTES
            if raw[0] != 0x77 or length < HEAD_BYTES:  # w: WAL data
                self._on_keepalive(raw)
        if size:
            self._last_received_at = time.monotonic()
            self._partial_message_bytes = 0
            if not turn.size:
                self._read_batches.append(turn)
            turn.size += size
            self._buffered_bytes += size
        if length == _COPY_ENDED:
            self._raise_end()
        return bool(size)

    def _on_keepalive(self, raw: bytes) -> None:
        if sent_up_to(raw) is None:
            raise TransientError(f"Postgres sent an unexpected replication message {raw[:1]!r}. Capture reconnects.")
        if raw[-1]:  # the server requests a reply
            self._sent_at = 0.0  # makes a status update due at the end of this pump

    def _raise_end(self) -> None:
        """Raise the error with which the server ended the stream."""
        result = self._pgconn.get_result()
        text = (result.error_message if result else b"").decode(errors="replace").strip()
        state = ((result.error_field(pq.DiagnosticField.SQLSTATE) if result else None) or b"").decode()
        if state.startswith(_PERMANENT):
            raise RefusedError(
                f"Postgres cannot send a change from its WAL: {text} (SQLSTATE {state})",
                remedy="Every retry would fail at the same LSN, and the slot would keep all WAL from there on. Repair "
                "the values at the source (text that is not valid in the database's encoding), then run: "
                "tailrace recover.",
            )
        raise TransientError(f"Postgres ended the replication stream: {text or 'no reason given'}")

    def _command(
        self,
        command: bytes,
        expected: pq.ExecStatus = pq.ExecStatus.TUPLES_OK,
        *,
        waiting: Callable[[], None] = lambda: None,
    ) -> pq.abc.PGresult:
        """Run a replication command, and call `waiting` now and then while it takes long."""
        tell_at = time.monotonic() + WAITING_FIRST_SECONDS
        try:
            self._pgconn.send_query(command)
            while self._pgconn.is_busy():
                # Polls instead of blocking, because creating a slot waits for every open transaction to end.
                select.select([self._pgconn.socket], [], [], 0.2)
                if self._stop():
                    raise TransientError(
                        "Capture received a stop signal while Postgres was still executing a replication command."
                    )
                if time.monotonic() > tell_at:
                    waiting()
                    tell_at = time.monotonic() + WAITING_AGAIN_SECONDS
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error
        if result is None:
            raise TransientError("Postgres returned no result for a replication command.")
        if result.status == expected:
            if expected != pq.ExecStatus.COPY_BOTH:
                self._pgconn.get_result()  # the None after the result of every simple query
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = result.error_message.decode(errors="replace").strip()
        if state == "55006":  # object_in_use
            raise SlotInUse(text)
        if state.startswith(("57P", "08", "53")):
            raise TransientError(f"Postgres temporarily refused a replication command: {text}")
        raise RefusedError(
            f"Postgres refused a replication command: {text}",
            remedy="Repair this at the source, then start capture again.",
        )


def sent_up_to(raw: bytes) -> LSN | None:
    """Return a keepalive's LSN, up to which the server has sent everything; None for every other message."""
    if raw[0] != 0x6B or len(raw) != _KEEPALIVE.size:  # k
        return None
    wal_end, _clock, _reply_now = _KEEPALIVE.unpack(raw)
    return LSN(wal_end)

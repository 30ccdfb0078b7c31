"""The replication connection, on libpq through `psycopg.pq`.

`pump` moves bytes both ways and never blocks on Kafka: it reads ahead into a bounded buffer and sends a status update
whenever one is due, so the server's keepalives are answered whatever else goes on. Once the buffer is full nothing
more is read, TCP fills up, and the walsender waits: that is the backpressure.
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
# SQLSTATE classes of errors that come back as often as the server reads the same log: values that it cannot send
# (22: bytes that are no text in UTF-8), and what is too much for it (54).
_PERMANENT = ("22", "54")

# Enough to answer keepalives and to have work at hand; the rest waits in TCP's buffers and at the server.
READ_AHEAD_BYTES = 1 << 20
# What one `pump` reads: little enough to be handled while it may still be in the processor's cache.
READ_BATCH_BYTES = 256 << 10
_MESSAGE_COST_BYTES = 100  # what the objects cost beside a message's own bytes
STATUS_SECONDS = 1.0
SILENCE_SECONDS = 30.0
# A message that takes longer than that to become whole comes at least so fast, and is no larger than Postgres can make
# it. Otherwise its length was wrong, and everything that follows would be taken for a part of it.
_SLOWEST_BYTES_PER_SECOND = 1024
_LARGEST_MESSAGE_BYTES = (1 << 30) + (1 << 20)
WAITING_FIRST_SECONDS, WAITING_AGAIN_SECONDS = 2.0, 15.0


class SlotInUse(Exception):  # noqa: N818 - not an error: it means "be the standby"
    """Another session holds the slot."""


class CreatedSlot(NamedTuple):
    """What commits after `point` will be streamed; `snapshot` shows what had committed before."""

    point: LSN
    snapshot: str


class _ReadBatch:
    """What was read in one go, or in several short ones; `size` in bytes, with what the objects cost."""

    __slots__ = ("items", "size")

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.size = 0


class ReplicationStream:
    """COPY BOTH on one slot. `confirm` only remembers; the next status update tells the server."""

    def __init__(self, conninfo: str, *, slot: str, publication: str, stop: Callable[[], bool]) -> None:
        self._connection = connect(conninfo, replication="database", application_name=f"tailrace capture {slot}")
        self._pgconn: pq.abc.PGconn = self._connection.pgconn
        self._slot = slot
        self._stop = stop
        self._publication = publication
        self._selector = selectors.DefaultSelector()
        self._wakes = selectors.DefaultSelector()  # the watched descriptors only
        self._read_batches: deque[_ReadBatch] = deque()
        self._buffered_bytes = 0  # of all turns
        self._received = 0
        self._confirmed = 0
        self._holds_confirmations = False
        self._held_lsn = LSN(0)
        self._sent_at = 0.0
        self._last_received_at = time.monotonic()
        self._partial_message_bytes = 0  # that have come since the last whole message
        self._part_since = 0.0

    def identify(self) -> tuple[str, int]:
        """(system identifier, timeline)."""
        result = self._command(b"IDENTIFY_SYSTEM")
        return (result.get_value(0, 0) or b"").decode(), int(result.get_value(0, 1) or b"0")

    def forked_at(self, timeline: int, old: int) -> LSN | None:
        """Where the history of `timeline` left the timeline `old`; None where it never was on it."""
        return self.forks(timeline).get(old)

    def forks(self, timeline: int) -> dict[int, LSN]:
        """The timelines that `timeline` comes from, and where it left each; the first has no history."""
        if timeline <= 1:
            return {}
        history = (self._command(b"TIMELINE_HISTORY %d" % timeline).get_value(0, 1) or b"").decode()
        lines = [line.split("\t") for line in history.splitlines() if line.strip() and not line.startswith("#")]
        return {int(fields[0]): LSN.parse(fields[1].strip()) for fields in lines}

    def create_slot(self, waiting: Callable[[], None] = lambda: None, *, export: bool = False) -> CreatedSlot:
        """Create the slot, and export the snapshot of its consistent point if asked to.

        That waits for every open transaction to end; `waiting` is called now and then while it does. The snapshot
        lives until the next command on this connection.
        """
        if export:
            self._disable_timeouts()
        # Standbys that synchronise slots take it over, so that a promoted one can go on from it.
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
        """Raises when the connection is gone, and with it the snapshot that it exported."""
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise TransientError(f"The connection that holds the snapshot broke: {explain(error)}") from error

    def _disable_timeouts(self) -> None:
        """For as long as a copy takes, this session is idle in a transaction."""
        names = ["idle_in_transaction_session_timeout", "idle_session_timeout"]
        if self._pgconn.server_version >= 170000:
            names.append("transaction_timeout")
        for name in names:
            self._command(f"SET {name} = 0".encode(), pq.ExecStatus.COMMAND_OK)

    def start(self) -> None:
        """Take the slot: from here on this process is the one capture. Raises SlotInUse when another one is."""
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, messages 'true')"
        ).format(sql.Identifier(self._slot), sql.Literal(sql.Identifier(self._publication).as_string(None)))
        self._command(command.as_bytes(self._connection), pq.ExecStatus.COPY_BOTH)
        self._pgconn.nonblocking = 1
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._last_received_at = time.monotonic()

    def watch(self, descriptor: int) -> None:
        """Also wake up when this file descriptor becomes readable; it is drained by its owner."""
        if descriptor in self._wakes.get_map():
            return
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._wakes.register(descriptor, selectors.EVENT_READ)

    def take(self) -> list[bytes]:
        """The next turn, in stream order: messages with their heads, and keepalives (see `sent_up_to`).

        Not everything at once: what is being handled takes up room beside what is read ahead meanwhile.
        """
        if not self._read_batches:
            return []
        turn = self._read_batches.popleft()
        self._buffered_bytes -= turn.size
        return turn.items

    def pump(self, timeout_seconds: float) -> bool:
        """Wait for bytes or a watched descriptor, at most so long; read what there is; send a status if due.

        Whether there is something to `take`.
        """
        full = self._buffered_bytes >= READ_AHEAD_BYTES
        if not full and not self._read_available():
            ready = self._selector.select(min(timeout_seconds, STATUS_SECONDS))
            if any(key.fd == self._pgconn.socket for key, _ in ready):
                self._note_partial_message()
            self._fill_batch()
        elif full:
            self._last_received_at = time.monotonic()  # it is we who do not listen
            self._partial_message_bytes = 0
            self._wakes.select(min(timeout_seconds, STATUS_SECONDS))
        self.send_status_if_due()
        return bool(self._read_batches)

    def send_status_if_due(self) -> None:
        """Send a status update if one is due, and notice a server that has gone silent."""
        now = time.monotonic()
        if now - self._sent_at >= STATUS_SECONDS:
            silent_seconds = now - self._last_received_at
            if silent_seconds > SILENCE_SECONDS:
                raise TransientError(f"Postgres has been silent for {silent_seconds:.0f} seconds; reconnecting.")
            self._check_part(now)
            self.send_status(ask=silent_seconds > SILENCE_SECONDS / 3)

    def _note_partial_message(self) -> None:
        """A large message takes its time: it is heard before it is whole."""
        self._last_received_at = time.monotonic()
        if not self._partial_message_bytes:
            self._part_since = self._last_received_at
        waiting = fcntl.ioctl(self._pgconn.socket, termios.FIONREAD, bytes(4))
        self._partial_message_bytes += int.from_bytes(waiting, sys.byteorder)

    def _check_part(self, now: float) -> None:
        seconds = now - self._part_since
        is_slow = seconds > SILENCE_SECONDS and self._partial_message_bytes < seconds * _SLOWEST_BYTES_PER_SECOND
        if self._partial_message_bytes and (is_slow or self._partial_message_bytes > _LARGEST_MESSAGE_BYTES):
            raise TransientError(
                f"A message from Postgres has not ended after {self._partial_message_bytes} bytes in {seconds:.0f} s: "
                "its length is wrong, or the connection is far too slow; reconnecting."
            )

    def hold_confirmations(self) -> None:
        """`confirm` tells the server nothing, until `release_confirmations`."""
        self._holds_confirmations = True

    def release_confirmations(self) -> None:
        self._holds_confirmations = False
        self.confirm(self._held_lsn)

    def confirm(self, lsn: LSN) -> None:
        """Everything before `lsn` is durable in Kafka: the server may forget it."""
        if self._holds_confirmations:
            self._held_lsn = max(lsn, self._held_lsn)
        elif lsn > self._confirmed:
            self._confirmed = lsn
            self._received = max(self._received, lsn)

    def send_status(self, *, ask: bool = False) -> None:
        now_us = int((time.time() - _POSTGRES_EPOCH_SECONDS) * 1_000_000)
        status = _STATUS.pack(b"r", self._received, self._confirmed, self._confirmed, now_us, ask)
        try:
            if not self._pgconn.put_copy_data(status):
                return  # no room for it: it is still due
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error
        self._sent_at = time.monotonic()

    def close(self) -> None:
        self._selector.close()
        self._wakes.close()
        self._connection.close()

    def _fill_batch(self) -> None:
        """libpq's buffer takes 16 kB from the socket at a time: as often as makes a turn, or until there is no more.

        (Reading twice without taking out what is there makes that buffer larger, and it never shrinks.)
        """
        enough = min(self._buffered_bytes + READ_BATCH_BYTES, READ_AHEAD_BYTES)
        try:
            self._pgconn.consume_input()
            while self._read_available() and self._buffered_bytes < enough:
                self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error

    def _read_available(self) -> bool:
        """Hot: once per message. Moves what libpq has buffered into a turn; False when there was nothing."""
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
            raise TransientError(f"unexpected replication message {raw[:1]!r}; reconnecting")
        if raw[-1]:  # a reply is wanted
            self._sent_at = 0.0  # due at the end of this pump

    def _raise_end(self) -> None:
        result = self._pgconn.get_result()
        text = (result.error_message if result else b"").decode(errors="replace").strip()
        state = ((result.error_field(pq.DiagnosticField.SQLSTATE) if result else None) or b"").decode()
        if state.startswith(_PERMANENT):
            raise RefusedError(
                f"Postgres cannot send what is in its log: {text} (SQLSTATE {state})",
                remedy="It would fail at the same place for ever, and keep all WAL from there on. Mend the values at "
                "the source (text that is not valid in the database's encoding), then run: tailrace recover.",
            )
        raise TransientError(f"Postgres ended the replication stream: {text or 'no reason given'}")

    def _command(
        self,
        command: bytes,
        expected: pq.ExecStatus = pq.ExecStatus.TUPLES_OK,
        *,
        waiting: Callable[[], None] = lambda: None,
    ) -> pq.abc.PGresult:
        tell_at = time.monotonic() + WAITING_FIRST_SECONDS
        try:
            self._pgconn.send_query(command)
            while self._pgconn.is_busy():
                # Not a blocking call: making a slot waits for every open transaction to end.
                select.select([self._pgconn.socket], [], [], 0.2)
                if self._stop():
                    raise TransientError("Stopped while Postgres was still at it.")
                if time.monotonic() > tell_at:
                    waiting()
                    tell_at = time.monotonic() + WAITING_AGAIN_SECONDS
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
        except psycopg.OperationalError as error:
            raise TransientError(f"The replication connection broke: {explain(error)}") from error
        if result is None:
            raise TransientError("Postgres gave no answer.")
        if result.status == expected:
            if expected != pq.ExecStatus.COPY_BOTH:
                self._pgconn.get_result()  # the None that ends every simple query
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = result.error_message.decode(errors="replace").strip()
        if state == "55006":  # object_in_use
            raise SlotInUse(text)
        if state.startswith(("57P", "08", "53")):
            raise TransientError(f"Postgres refused for now: {text}")
        raise RefusedError(f"Postgres refused: {text}", remedy="Mend this at the source, then start capture again.")


def sent_up_to(raw: bytes) -> LSN | None:
    """What a keepalive says: the server has sent everything up to here. None for every other message."""
    if raw[0] != 0x6B or len(raw) != _KEEPALIVE.size:  # k
        return None
    wal_end, _clock, _reply_now = _KEEPALIVE.unpack(raw)
    return LSN(wal_end)

"""The order in which capture's records leave: to the producer, or behind a commit or an event that is in their way.

A producer has one transaction at a time, and a commit takes about ten milliseconds. Decoding does not wait for it: new
records go into the outbox, and to the producer when the commit is complete. Some events need a query first: an update
that left out a TOASTed value, or a key that several rows passed through. Those are held for the re-select, and all
later records wait behind them, which keeps the order.
"""

from __future__ import annotations

from collections import deque

from cdc.encoding.incomplete_event import Held, Incomplete
from cdc.kafka.record import RECORD_BYTES, Emit, Headers, Record


class PendingRecords:
    """A queue of records with its approximate size in bytes."""

    def __init__(self) -> None:
        self._records: deque[tuple[str, bytes, bytes | None, Headers, int]] = deque()
        self.bytes = 0  # the approximate size of the records

    def __len__(self) -> int:
        return len(self._records)

    def put(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        self._records.append((topic, key, value, headers, partition))
        self.bytes += RECORD_BYTES + (len(value) if value is not None else 0)

    def empty_into(self, send: Emit) -> None:
        """Send all records, and release each as soon as it is sent: the producer has its own copy."""
        records = self._records
        while records:
            send(*records.popleft())
        self.bytes = 0


class RecordQueue:
    """Takes records in stream order and passes each on as soon as nothing is in its way.

    `emit`: takes the next record. It is the producer's own function if nothing is in the way, so a run of rows costs no
    call of this class. Read it again after every other call. `send`: the producer's function for records of the outbox.
    `outbox`: the records that wait for a Kafka commit. `held`: the events that wait for a re-select, and the records
    behind them.
    """

    def __init__(self, *, emit: Emit, send: Emit) -> None:
        self._emit = self._emit_directly = emit
        self._send = send
        self.emit: Emit = emit
        self.outbox = PendingRecords()
        self.held: Held = []
        self.held_bytes = 0  # the approximate size of `held` in memory

    def put(self, record: Record) -> None:
        if self.held:
            self._put_behind(record)
        else:
            self._emit(*record)

    def hold(self, event: Incomplete) -> None:
        """Hold an event for the re-select, and all later records behind it."""
        sizes = [len(value) for value in event.values or () if isinstance(value, bytes)]
        self.held.append(event)
        self.held_bytes += RECORD_BYTES + len(event.before) + sum(sizes)
        self.emit = self._emit_behind

    def take_held(self) -> Held:
        """Return and clear the held events. The caller completes and publishes them before any other record."""
        held, self.held, self.held_bytes = self.held, [], 0
        self.emit = self._emit
        return held

    def open_outbox(self) -> None:
        """Collect all further records in the outbox, because a Kafka commit begins."""
        self._use(self.outbox.put)

    def close_outbox(self) -> None:
        """Send the records of the outbox to the producer, because the Kafka commit has ended."""
        self._use(self._emit_directly)
        self.outbox.empty_into(self._send)

    def _use(self, emit: Emit) -> None:
        self._emit = emit
        if not self.held:
            self.emit = emit

    def _put_behind(self, record: Record) -> None:
        self.held.append(record)
        self.held_bytes += RECORD_BYTES + len(record.value or b"")

    def _emit_behind(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int) -> None:
        self._put_behind(Record(topic, key, value, headers, partition))

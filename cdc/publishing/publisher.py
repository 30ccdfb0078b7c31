"""The transactional producer. It has one Kafka transaction at a time, and is discarded after any error.

A new producer with the same `transactional.id` aborts the old one's open transaction and fences it. So capture handles
every error in the same way: it discards this producer, and starts again from the progress record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from cdc.errors import RefusedError, TransientError
from cdc.kafka.producer import open_producer
from cdc.kafka.record import MESSAGE_HEADER, RECORD_BYTES, Headers
from cdc.publishing.parked import (
    HEADER,
    MARKER_KEY,
    Parked,
    ParkedKeys,
    every_settled_entry,
    is_delete,
    parked_entry,
    parked_headers,
    settled_entry,
    without_before,
    without_rows,
)

T = TypeVar("T")

PRODUCER_SETTINGS: dict[str, str | int] = {
    # Java's default partitioner. librdkafka's own default chooses the same partition for only a quarter of the keys.
    "partitioner": "murmur2_random",
    "enable.idempotence": "true",
    "acks": "all",
    "compression.type": "lz4",
    # Long, for full batches. It delays no record: consumers see records only after the commit, and the commit's flush
    # ignores the linger time.
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    # The memory limit: above it, `produce` raises BufferError.
    "queue.buffering.max.kbytes": 12_288,
    "queue.buffering.max.messages": 50_000,
    # Reconnect soon after a broker is available again. The default is ten seconds.
    "reconnect.backoff.max.ms": 1000,
    # The commit fails if any record failed, so reports of successful records are not needed. They would fill the queue.
    "delivery.report.only.error": True,
    # librdkafka would print to stderr, outside our log. Errors arrive as exceptions, with the cause from error_cb.
    "log_level": 0,
}
# What a record batch adds to a single record: the headers of batch and record, and varints.
_RECORD_OVERHEAD_BYTES = 256
# The interval of checks during a flush. librdkafka waits for a deleted topic as for one that does not exist yet: a
# minute or more.
_POLL_SECONDS = 3.0
_CONNECT_SECONDS = 5.0

_PERMANENT_ERRORS = {
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


def producer_settings(max_message_bytes: int) -> dict[str, str | int]:
    """Return the settings, with a queue that is large enough for the largest record. It would never fit otherwise."""
    kbytes = max(int(PRODUCER_SETTINGS["queue.buffering.max.kbytes"]), max_message_bytes // 1024 + 1)
    return PRODUCER_SETTINGS | {"queue.buffering.max.kbytes": kbytes}


def largest_record(max_message_bytes: int) -> int:
    """Return how many bytes a record's key, value and headers may have together."""
    return max_message_bytes - _RECORD_OVERHEAD_BYTES


class Publisher:
    """Publishes records in Kafka transactions, and parks rows that are too large.

    `wait_for_room` waits a moment while the producer's queue is full.

    It is not thread-safe. Only one thread at a time uses it: the worker thread during blocking calls, and
    capture's main thread otherwise.
    """

    def __init__(
        self,
        options: dict[str, str],
        *,
        transactional_id: str,
        transaction_timeout_seconds: float,
        max_message_bytes: int,
        parked_topic: str,
        wait_for_room: Callable[[], None] = lambda: time.sleep(0.01),
    ) -> None:
        self._last_error = ""
        self._failure = 0  # the error code of the first record that Kafka did not accept
        self._largest_record = largest_record(max_message_bytes)
        self._producer, self._row_sender = open_producer(
            {
                **producer_settings(max_message_bytes),
                **options,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(transaction_timeout_seconds * 1000),
                "delivery.timeout.ms": int(transaction_timeout_seconds * 1000),
                "error_cb": self._remember,
                "on_delivery": self._remember_failed,
            },
            send=self.send,
            note_topic=self._note_topic,
            largest_record=self._largest_record,
        )
        # These publish rows: by `send`, or by the compiled fast path.
        self.emit = self._row_sender.emit
        self.send_rows = self._row_sender.send_rows
        self._produce: Callable[..., None] = self._producer.produce
        self._parked_topic = parked_topic
        self._wait_for_room = wait_for_room
        self._open = False
        self._last_topic = ""  # usually the topic of the next record too
        self.touched: set[str] = set()
        self._count = 0
        self._bytes = 0  # the size of the keys and values of these records
        self._parked_keys = ParkedKeys()
        self._with_parked: frozenset[str] = frozenset()  # topics with parked rows

    def fence(self, timeout_seconds: float) -> None:
        """Abort the open transaction of any earlier producer with this id, and make sure that it can write no more."""
        # Connect first: without a connection, librdkafka searches for the coordinator only twice a second.
        with suppress(KafkaException):  # the broker is unavailable: the next call waits for it, or raises
            self._producer.cluster_id(min(timeout_seconds, _CONNECT_SECONDS))
        self._checked(lambda: self._producer.init_transactions(timeout_seconds))

    def begin(self) -> None:
        if not self._open:
            self._checked(self._producer.begin_transaction)
            self._open = True

    def send(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        """Send one record. Blocks in `wait_for_room` while the queue is full. A hot path: one call per record."""
        size = len(key) if value is None else len(key) + len(value)
        if len(headers) > 1:  # the version fits into the overhead; a change of the key adds the other key
            size += sum([len(data) for _, data in headers])
            if headers[1][0] == HEADER and value is not None:
                self._note_parked(topic, key, headers)
        if size > self._largest_record:
            self._send_less(topic, key, value, headers, size)
            return
        if topic is not self._last_topic:
            self._note_topic(topic)
        try:
            self._produce(topic, value, key, partition, headers=headers)
        except BufferError:
            self._produce_later(topic, value, key, partition, headers)
        except KafkaException as error:
            raise self._translated(error) from error
        self._count += 1
        self._bytes += size
        if topic in self._with_parked and not _is_parked(headers):
            self._settle(topic, key, headers[0][1])

    @property
    def count(self) -> int:
        """The number of records since the last commit."""
        return self._count + self._row_sender.count

    @property
    def queued_bytes(self) -> int:
        """The approximate size of the producer's queue. Safe to read while another thread commits."""
        count, sent = self.count, self._bytes + self._row_sender.sent_bytes
        return len(self._producer) * (sent // count + RECORD_BYTES) if count else 0

    def _note_topic(self, topic: str) -> None:
        self.begin()
        self.touched.add(topic)
        self._last_topic = topic

    def _produce_later(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        while True:
            self.poll()
            self._wait_for_room()
            with suppress(BufferError):
                self._checked(lambda: self._produce(topic, value, key, partition, headers=headers))
                return

    def poll(self) -> None:
        """Serve librdkafka's callbacks. Call this often: delivered records stay in the queue until then."""
        self._checked(lambda: self._producer.poll(0))

    # -- records that are too large, and parked rows -------------------------------------------------------------

    def load_parked(self, rows: Iterable[Parked]) -> None:
        """Load the rows that earlier sessions parked. The next event of such a row then also settles it."""
        self._parked_keys.load(rows)
        self._watch()

    @property
    def parked_counts(self) -> dict[str, int]:
        """By topic, how many rows are parked and not settled, including records that are sent and not committed."""
        return self._parked_keys.counts

    def _send_less(self, topic: str, key: bytes, value: bytes | None, headers: Headers, size: int) -> None:
        """Replace a record that is too large. The broker would refuse it, and the whole transaction would fail."""
        if ".__" in topic and topic.count(".") == 1:  # a control topic (see names), which needs all its records
            raise RefusedError(
                f"Topic {topic}: a record of {size} bytes is over max_message_bytes.",
                remedy="Raise [kafka] max_message_bytes.",
            )
        version = headers[0][1]
        if len(headers) > 1 and headers[1][0] == MESSAGE_HEADER:
            self.send(*parked_entry(self._parked_topic, topic, key, version, size, self._largest_record))
        elif _is_parked(headers):
            pass  # the key alone is too long, so the topic never had a record of it; the entry on `__parked` exists
        elif value is None or is_delete(value):
            self._send_small_delete(topic, key, value, version)
        else:
            self._send_row_or_park(topic, key, value, headers, size)

    def _send_row_or_park(self, topic: str, key: bytes, value: bytes, headers: Headers, size: int) -> None:
        """Send the row without `before`, or also without the headers of a key change. Park it if neither fits."""
        smaller = without_before(value)
        room = self._largest_record - len(key) - len(smaller)
        if room >= size - len(key) - len(value):
            self.send(topic, key, smaller, headers)
        elif room >= 0:
            self.send(topic, key, smaller, headers[:1])
        else:
            marked = parked_headers(headers[0][1], size)
            self.send(topic, key, without_rows(value, parked=True), marked)
            self.send(topic, key, None, marked)

    def _send_small_delete(self, topic: str, key: bytes, value: bytes | None, version: bytes) -> None:
        """Send a delete with the key only. If the key is too long for a record, the topic never had a record of it."""
        event = None if value is None else without_rows(value, parked=False)
        if len(key) + len(event or b"") <= self._largest_record:
            self.send(topic, key, event, [("v", version)])
        elif topic in self._with_parked:
            self._settle(topic, key, version)

    def _note_parked(self, topic: str, key: bytes, headers: Headers) -> None:
        version, size = headers[0][1], headers[1][1]
        self._parked_keys.add(topic, key, version)
        if topic not in self._with_parked:
            self._watch()
        self.send(*parked_entry(self._parked_topic, topic, key, version, size, self._largest_record))

    def _settle(self, topic: str, key: bytes, version: bytes) -> None:
        """Settle the parked rows that a record just sent replaces: the row of its key, or those before a marker."""
        if key.startswith(MARKER_KEY):
            if self._parked_keys.settle_below(topic, version):
                self.send(*every_settled_entry(self._parked_topic, topic, version))
        elif self._parked_keys.settle(topic, key):
            self.send(*settled_entry(self._parked_topic, topic, key, version, self._largest_record))
        if topic not in self._parked_keys.topics:
            self._watch()

    def _watch(self) -> None:
        """Route all records of topics with parked rows through `send`, which looks up each key."""
        self._with_parked = self._parked_keys.topics
        self._row_sender.watch(self._with_parked)

    def flush(self, timeout_seconds: float, poll: Callable[[], None]) -> None:
        """Wait until the brokers have all records sent so far. They are still invisible to read_committed consumers.

        While this takes long, it calls `poll` every few seconds. `poll` raises if there is no point in waiting.
        """
        give_up_at = time.monotonic() + timeout_seconds
        while self._checked(lambda: self._producer.flush(_POLL_SECONDS)):
            poll()
            if time.monotonic() > give_up_at:
                raise TransientError(f"Kafka did not accept all records within {timeout_seconds:.0f} seconds.")

    def commit(self, timeout_seconds: float) -> None:
        """Commit the transaction."""
        self._checked(lambda: self._producer.commit_transaction(timeout_seconds))
        self._open = False
        self._last_topic = ""
        self.touched.clear()
        self._count = self._bytes = 0
        self._row_sender.reset_counts()

    def abandon(self) -> None:
        """Discard the queued records. The broker aborts the transaction at the next producer's fence, or by timeout."""
        self._producer.purge()

    def _checked(self, call: Callable[[], T]) -> T:
        """Make a producer call and translate its errors.

        Every call that serves callbacks may raise: librdkafka raises a fatal error from the next such call.
        """
        try:
            return call()
        except KafkaException as error:
            raise self._translated(error) from error
        except SystemError as error:
            # The same call raised a fatal error and then served a delivery report. Python raises SystemError, because
            # confluent-kafka calls the report's callback while an exception is already set.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self._translated(error.__cause__) from error

    def _remember(self, error: KafkaError) -> None:
        """Keep librdkafka's error text: it has the cause. The next call only reports that the transaction failed."""
        self._last_error = f" ({error.str()})"

    def _remember_failed(self, error: KafkaError | None, _message: Message) -> None:
        """Keep the first failed record's error code. (delivery.report.only.error: called only for failures.)

        librdkafka does not call this for records of the compiled fast path. The outlet has their failure.
        """
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._failure = self._failure or error.code()

    def _translated(self, error: KafkaException) -> RefusedError | TransientError:
        with suppress(KafkaException, SystemError):  # a fatal error (see _checked), most likely the same one
            self._producer.poll(0)
        first: KafkaError = error.args[0]
        causes = [first, *(cause for cause in self._causes(first.code()) if cause.code() != first.code())]
        denied = next((cause for cause in causes if cause.code() in _PERMANENT_ERRORS), None)
        if denied is not None:
            return RefusedError(f"Kafka denied access: {denied.str()}", remedy="Correct [kafka] or the broker's ACLs.")
        if any(cause.code() in _FENCED for cause in causes):
            return TransientError("Another capture has fenced this producer and taken over.")
        because = f" ({causes[-1].str()})" if len(causes) > 1 else self._last_error
        return TransientError(f"Kafka: {first.str()}{because}")

    def _causes(self, code: int) -> Iterator[KafkaError]:
        """Yields the causes of an error that only reports a failed transaction."""
        if code == KafkaError._STATE:
            try:
                self._producer.begin_transaction()  # its error has the cause; success does no harm
            except KafkaException as error:
                yield error.args[0]
        failure = self._failure or self._row_sender.failure
        if failure:
            yield KafkaError(failure)


def _is_parked(headers: Headers) -> bool:
    """Whether these are the headers of a delete or a tombstone that replaces a parked row."""
    return len(headers) > 1 and headers[1][0] == HEADER

"""The transactional producer. One Kafka transaction at a time; whatever fails, the producer is thrown away.

A new producer with the same `transactional.id` aborts what the old one left open and fences it, so the answer to every
trouble is the same: give up this producer, and start again from the progress record.
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
    # Java's default partitioner; librdkafka's own agrees with it on a quarter of keys only.
    "partitioner": "murmur2_random",
    "enable.idempotence": "true",
    "acks": "all",
    "compression.type": "lz4",
    # Long, for full batches: a commit flushes, which waits for no linger, and nobody sees a record before.
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    # The bound on memory: past it `produce` says BufferError.
    "queue.buffering.max.kbytes": 12_288,
    "queue.buffering.max.messages": 50_000,
    # As soon as a broker is back; the default is ten seconds.
    "reconnect.backoff.max.ms": 1000,
    # Nobody asks for a report per record: the commit fails if any of them did. (Without this, they fill the queue.)
    "delivery.report.only.error": True,
    # librdkafka prints to stderr past our log; what is wrong comes as an exception, with the cause from error_cb.
    "log_level": 0,
}
# Room for what a record batch adds to a single record: headers of batch and record, varints.
_RECORD_OVERHEAD_BYTES = 256
# librdkafka waits for a topic that was deleted as for one that is not made yet, for a minute and more.
_LOOK_SECONDS = 3.0
_CONNECT_SECONDS = 5.0

_HOPELESS = {
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


def producer_settings(max_message_bytes: int) -> dict[str, str | int]:
    """With room in the queue for the largest record: for one that is larger than the queue there would never be any."""
    kbytes = max(int(PRODUCER_SETTINGS["queue.buffering.max.kbytes"]), max_message_bytes // 1024 + 1)
    return PRODUCER_SETTINGS | {"queue.buffering.max.kbytes": kbytes}


def largest_record(max_message_bytes: int) -> int:
    """Bytes of key, value and headers for which there is surely room."""
    return max_message_bytes - _RECORD_OVERHEAD_BYTES


class Publisher:
    """Not thread-safe; capture hands it to its Kafka thread for the blocking calls and back."""

    def __init__(
        self,
        options: dict[str, str],
        *,
        transactional_id: str,
        transaction_timeout_seconds: float,
        max_message_bytes: int,
        parked_topic: str,
    ) -> None:
        self._last_error = ""
        self._failure = 0  # the error code of the first record that could not be delivered
        self._largest_record = largest_record(max_message_bytes)
        self._producer, self._outlet = open_producer(
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
        # For rows: `send`, or a shorter way.
        self.emit = self._outlet.emit
        self.send_rows = self._outlet.send_rows
        self._produce: Callable[..., None] = self._producer.produce
        self._parked_topic = parked_topic
        self.wait_for_room: Callable[[], None] = lambda: time.sleep(0.01)
        self._open = False
        self._last_topic = ""  # the records of a table come in runs
        self.touched: set[str] = set()
        self._count = 0
        self._bytes = 0  # of the keys and values that were counted
        self._parked_keys = ParkedKeys()
        self._with_parked: frozenset[str] = frozenset()  # topics of which some rows are parked

    def fence(self, timeout_seconds: float) -> None:
        """Abort whatever an earlier producer of this id left open, and stop it from writing ever again."""
        # Connected first: librdkafka looks for the coordinator only twice a second while it has no connection.
        with suppress(KafkaException):  # a broker that is away: what follows waits for it, or says so
            self._producer.cluster_id(min(timeout_seconds, _CONNECT_SECONDS))
        self._checked(lambda: self._producer.init_transactions(timeout_seconds))

    def begin(self) -> None:
        if not self._open:
            self._checked(self._producer.begin_transaction)
            self._open = True

    def send(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int = -1) -> None:
        """Hot: once per record. Blocks (through `wait_for_room`) while the queue is full."""
        size = len(key) if value is None else len(key) + len(value)
        if len(headers) > 1:  # the version alone is within the overhead; a key change carries the other key too
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
        """How many records since the last commit."""
        return self._count + self._outlet.count

    @property
    def queued_bytes(self) -> int:
        """About what the producer's queue takes up. May be asked while another thread commits."""
        count, sent = self.count, self._bytes + self._outlet.sent_bytes
        return len(self._producer) * (sent // count + RECORD_BYTES) if count else 0

    def _note_topic(self, topic: str) -> None:
        self.begin()
        self.touched.add(topic)
        self._last_topic = topic

    def _produce_later(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        while True:
            self.poll()
            self.wait_for_room()
            with suppress(BufferError):
                self._checked(lambda: self._produce(topic, value, key, partition, headers=headers))
                return

    def poll(self) -> None:
        """Now and then: what was delivered takes up room in the queue until it is served."""
        self._checked(lambda: self._producer.poll(0))

    # -- what is too large ---------------------------------------------------------------------------------------

    def know_parked(self, rows: Iterable[Parked]) -> None:
        """What earlier sessions of capture have parked: from now on it is settled with the event that does so."""
        self._parked_keys.load(rows)
        self._watch()

    @property
    def parked_counts(self) -> dict[str, int]:
        """How many rows are parked and not settled, by topic, once what was sent so far is committed."""
        return self._parked_keys.counts

    def _send_less(self, topic: str, key: bytes, value: bytes | None, headers: Headers, size: int) -> None:
        """In place of a record that the broker would refuse, which would abort the whole transaction."""
        if ".__" in topic and topic.count(".") == 1:  # a control topic (see names): without it, nothing may go on
            raise RefusedError(
                f"A record of {size} bytes for {topic} is over max_message_bytes.",
                remedy="Raise [kafka] max_message_bytes.",
            )
        version = headers[0][1]
        if len(headers) > 1 and headers[1][0] == MESSAGE_HEADER:
            self.send(*parked_entry(self._parked_topic, topic, key, version, size, self._largest_record))
        elif _is_parked(headers):
            pass  # its key is too long: there never was a record of it, and the entry is written
        elif value is None or is_delete(value):
            self._send_small_delete(topic, key, value, version)
        else:
            self._send_row_or_park(topic, key, value, headers, size)

    def _send_row_or_park(self, topic: str, key: bytes, value: bytes, headers: Headers, size: int) -> None:
        """The row counts: `before`, and the other key in the headers of a key change, are left out before that."""
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
        """The key alone says what is gone. Where that is too long for a record, there never was one of it."""
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
        """A record of a table with parked rows was sent: it may be the one that settles some of them."""
        if key.startswith(MARKER_KEY):
            if self._parked_keys.settle_below(topic, version):
                self.send(*every_settled_entry(self._parked_topic, topic, version))
        elif self._parked_keys.settle(topic, key):
            self.send(*settled_entry(self._parked_topic, topic, key, version, self._largest_record))
        if topic not in self._parked_keys.topics:
            self._watch()

    def _watch(self) -> None:
        """Rows of these topics go by `send` from now on, which looks up each key; all others go the usual way."""
        self._with_parked = self._parked_keys.topics
        self._outlet.watch(self._with_parked)

    def flush(self, timeout_seconds: float, look: Callable[[], None]) -> None:
        """Everything sent so far is on the brokers, still invisible to read_committed.

        Where it takes long, `look` is asked again and again whether waiting makes sense; it raises if not.
        """
        give_up_at = time.monotonic() + timeout_seconds
        while self._checked(lambda: self._producer.flush(_LOOK_SECONDS)):
            look()
            if time.monotonic() > give_up_at:
                raise TransientError(f"Kafka took nothing for {timeout_seconds:.0f} seconds.")

    def commit(self, timeout_seconds: float) -> None:
        self._checked(lambda: self._producer.commit_transaction(timeout_seconds))
        self._open = False
        self._last_topic = ""
        self.touched.clear()
        self._count = self._bytes = 0
        self._outlet.begin_anew()

    def abandon(self) -> None:
        """Drop what is queued; the broker aborts the rest when the next producer fences, or by its timeout."""
        self._producer.purge()

    def _checked(self, call: Callable[[], T]) -> T:
        """Every call that serves callbacks may raise: a fatal error comes out of whichever is the next of them."""
        try:
            return call()
        except KafkaException as error:
            raise self._translated(error) from error
        except SystemError as error:
            # A delivery report in the same call, after a fatal error was raised in it: the report's callback trips
            # over the exception that confluent-kafka has set already.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self._translated(error.__cause__) from error

    def _remember(self, error: KafkaError) -> None:
        """What broke a transaction is told here; the call that fails next only says that it is broken."""
        self._last_error = f" ({error.str()})"

    def _remember_failed(self, error: KafkaError | None, _message: Message) -> None:
        """Called for failures only (delivery.report.only.error), and not for what goes by the outlet."""
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._failure = self._failure or error.code()

    def _translated(self, error: KafkaException) -> RefusedError | TransientError:
        with suppress(KafkaException, SystemError):  # a fatal error (see _checked), most likely this very one
            self._producer.poll(0)
        first: KafkaError = error.args[0]
        causes = [first, *(cause for cause in self._causes(first.code()) if cause.code() != first.code())]
        denied = next((cause for cause in causes if cause.code() in _HOPELESS), None)
        if denied is not None:
            return RefusedError(f"Kafka does not let us: {denied.str()}", remedy="Mend [kafka] or the broker's ACLs.")
        if any(cause.code() in _FENCED for cause in causes):
            return TransientError("Another capture has taken over (this producer is fenced).")
        because = f" ({causes[-1].str()})" if len(causes) > 1 else self._last_error
        return TransientError(f"Kafka: {first.str()}{because}")

    def _causes(self, code: int) -> Iterator[KafkaError]:
        """What is behind an error that only says that the transaction is broken."""
        if code == KafkaError._STATE:
            try:
                self._producer.begin_transaction()  # says why it cannot; if it can, no harm: the producer is given up
            except KafkaException as error:
                yield error.args[0]
        failure = self._failure or self._outlet.failure
        if failure:
            yield KafkaError(failure)


def _is_parked(headers: Headers) -> bool:
    """Of a delete or a tombstone that stands for a row that is there, and parked."""
    return len(headers) > 1 and headers[1][0] == HEADER

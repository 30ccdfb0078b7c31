"""Reading control topics from a real broker: committed records, open transactions, and waiting for them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.errors import TransientError
from cdc.kafka.control_topics import end_offsets, read_last
from tests.harness.kafka.topics import create_topic
from tests.harness.processes.waiting import eventually

KEY = b"where"


class Writer:
    """A transactional producer that may leave a transaction open."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0})
        self._producer.init_transactions(30)

    def write(self, value: bytes) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self.topic, value, KEY)
        self._producer.flush(30)

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self) -> None:
        self._producer.abort_transaction(30)


@pytest.fixture
def writer(kafka_bootstrap: str, prefix: str) -> Writer:
    """A topic with the committed record `first` and an open transaction with `second`."""
    topic = f"{prefix}.__progress"
    create_topic(kafka_bootstrap, topic, 1, cleanup_policy="compact")
    made = Writer(kafka_bootstrap, topic)
    made.write(b"first")
    made.commit()
    made.write(b"second")
    return made


def test_an_open_transaction_does_not_delay_status_readers(writer: Writer, kafka_bootstrap: str) -> None:
    """Lag and status read up to the last stable offset and do not wait for capture's open transaction."""
    assert read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY) == b"first"
    writer.commit()
    eventually(lambda: read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY) == b"second", 30)


@pytest.mark.parametrize(("committed", "expected"), [(True, b"second"), (False, b"first")], ids=["commit", "abort"])
def test_a_reader_that_resumes_waits_for_the_open_transaction(
    writer: Writer, kafka_bootstrap: str, committed: bool, expected: bytes
) -> None:
    """A start waits for the open transaction, since resuming from an earlier record would publish rows again."""
    options = {"bootstrap.servers": kafka_bootstrap}
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_last, options, writer.topic, KEY, decided=True)
        deadline = time.monotonic() + 1
        eventually(lambda: reading.done() or time.monotonic() > deadline, 10)
        assert not reading.done()
        if committed:
            writer.commit()
        else:
            writer.abort()
        assert reading.result(30) == expected


def test_a_transaction_that_stays_open_is_a_transient_error(writer: Writer, kafka_bootstrap: str) -> None:
    """A transaction that stays open past the deadline is a transient error, since Kafka ends it after its timeout."""
    with pytest.raises(TransientError, match="stayed open"):
        read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY, decided=True, timeout_seconds=2)
    writer.abort()


def test_new_topics_are_readable_at_once(kafka_bootstrap: str, prefix: str) -> None:
    """A broker answers "not leader" for a moment after it has created topics. The reader waits for that moment."""
    options = {"bootstrap.servers": kafka_bootstrap}
    names = [f"{prefix}.new{number}" for number in range(60)]
    with AdminClient(options) as admin:
        made = admin.create_topics([NewTopic(name, 4, 1) for name in names])
        made[names[-1]].result(30)
        assert end_offsets(options, reversed(names), 30) == {name: [0, 0, 0, 0] for name in names}

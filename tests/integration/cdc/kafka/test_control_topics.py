"""Reading control topics from a real broker: what is decided, what is not yet, and what waits for it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from cdc.errors import TransientError
from cdc.kafka.control_topics import read_last
from tests.harness.kafka.topics import create_topic
from tests.harness.processes.waiting import eventually

KEY = b"where"


class Writer:
    """One transaction after the other; `commit` may be long in coming."""

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
    """On a topic with one committed record, `first`, and a transaction that is open, with `second`."""
    topic = f"{prefix}.__progress"
    create_topic(kafka_bootstrap, topic, 1, cleanup_policy="compact")
    made = Writer(kafka_bootstrap, topic)
    made.write(b"first")
    made.commit()
    made.write(b"second")
    return made


def test_an_open_transaction_does_not_hold_up_who_only_looks(writer: Writer, kafka_bootstrap: str) -> None:
    """Capture nearly always has one open; lag and status read past it, up to what is decided."""
    assert read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY) == b"first"
    writer.commit()
    eventually(lambda: read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY) == b"second", 30)


@pytest.mark.parametrize(("committed", "expected"), [(True, b"second"), (False, b"first")], ids=["commit", "abort"])
def test_who_goes_on_from_the_last_record_waits_until_it_is_decided(
    writer: Writer, kafka_bootstrap: str, committed: bool, expected: bytes
) -> None:
    """A start that took an earlier one for the last would publish again what is published."""
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


def test_a_transaction_that_stays_open_is_worth_another_try(writer: Writer, kafka_bootstrap: str) -> None:
    """Kafka ends it after its own time; nobody hangs until then."""
    with pytest.raises(TransientError, match="stayed open"):
        read_last({"bootstrap.servers": kafka_bootstrap}, writer.topic, KEY, decided=True, timeout_seconds=2)
    writer.abort()

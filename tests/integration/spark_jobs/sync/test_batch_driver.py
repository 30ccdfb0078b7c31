"""The driver's batches on a real Kafka: which offsets it may apply, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from cdc.config import load_config
from cdc.errors import TransientError
from cdc.positions.progress import Progress
from spark_jobs.sync.batch_driver import BatchDriver
from spark_jobs.sync.topic_facts import CommittedEnds
from spark_jobs.writing.contract import Offsets
from tests.harness.kafka.topics import create_topic, delete_topics
from tests.harness.processes.waiting import eventually


@pytest.fixture
def topic(kafka_bootstrap: str, prefix: str) -> str:
    """Two partitions, and nothing in them."""
    name = f"{prefix}.public.t"
    create_topic(kafka_bootstrap, name, 2)
    return name


@pytest.fixture
def ends(kafka_bootstrap: str, prefix: str, topic: str, tmp_path: Path) -> Iterator[CommittedEnds]:
    file = tmp_path / "tailrace.toml"
    file.write_text(
        '[source]\ndsn = "postgresql://localhost/shop"\n'
        f'[kafka]\nbootstrap = "{kafka_bootstrap}"\nprefix = "{prefix}"\n'
    )
    with CommittedEnds(load_config(file), {topic: 2}) as found:
        yield found


@pytest.fixture
def producer(kafka_bootstrap: str, topic: str) -> Producer:
    found = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": topic})
    found.init_transactions()
    return found


def test_a_batch_ends_at_the_first_open_transaction(topic: str, ends: CommittedEnds, producer: Producer) -> None:
    """What is committed is applied at once, what is open is not; an aborted transaction only moves the offsets."""
    batches: list[tuple[Offsets, Offsets]] = []

    def wait(known: Progress | None, _seconds: float) -> Progress | None:
        return known

    driver = BatchDriver(
        starting={topic: [0, 0]},
        end_offsets=ends.read,
        apply_batch=lambda start, end: batches.append((start, end)),
        wait_for_progress=wait,
        events_per_batch=100,
        interval_seconds=0,
        stop=threading.Event(),
    )
    producer.begin_transaction()
    producer.produce(topic, b"1", b"1", 0)
    producer.flush()
    driver.step()
    assert batches == []
    producer.commit_transaction()
    _step_until(driver, batches, 1)
    assert batches == [({topic: [0, 0]}, {topic: [2, 0]})]
    producer.begin_transaction()
    producer.produce(topic, b"2", b"2", 1)
    producer.flush()
    producer.abort_transaction()
    _step_until(driver, batches, 2)
    assert batches[1:] == [({topic: [2, 0]}, {topic: [2, 2]})]


def _step_until(driver: BatchDriver, batches: list[tuple[Offsets, Offsets]], count: int) -> None:
    """The broker ends a transaction in each partition shortly after the producer has its answer."""

    def has_run() -> bool:
        driver.step()
        return len(batches) >= count

    eventually(has_run, 30, "the batch")


def test_a_topic_that_is_gone_is_an_error_to_retry(
    kafka_bootstrap: str, prefix: str, topic: str, ends: CommittedEnds, producer: Producer
) -> None:
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(topic, b"1", b"1", partition)
    producer.commit_transaction()
    eventually(lambda: ends.read() == {topic: [2, 2]}, 30, "the end of the transaction")
    delete_topics(kafka_bootstrap, prefix)
    with pytest.raises(TransientError, match="Kafka did not answer"):
        ends.read()


def test_a_partition_that_was_added_is_noticed(ends: CommittedEnds, kafka_bootstrap: str, topic: str) -> None:
    """A position must not move past rows in a partition that nothing reads. The session ends, and the next refuses."""
    ends.check_partitions()
    with AdminClient({"bootstrap.servers": kafka_bootstrap}) as admin:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)

    def is_noticed() -> bool:
        try:
            ends.check_partitions()
        except TransientError as error:
            return "3 partitions; it had 2" in str(error)
        return False

    eventually(is_noticed, 30, "the new partition")

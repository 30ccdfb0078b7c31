"""The audit's two readers of a topic give the same rows, whatever batches it has."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from cdc.audit.row_blocks import joined
from cdc.audit.row_content import Content
from spark_jobs.audit import topic_read_task
from spark_jobs.audit.side_tasks import FAILURE, TOPIC, Hashing
from spark_jobs.audit.topic_read_task import TopicReadTask
from spark_jobs.tasks.task_errors import unpacked_error
from tests.harness.kafka.topics import create_topic

Row = tuple[int, ...]


def _event(number: int) -> bytes:
    return b'{"before":null,"after":{"id":%d},"source":{"version":"0.1.0","seq":1},"op":"c"}' % number


@pytest.fixture
def topic(kafka_bootstrap: str, prefix: str) -> str:
    """A topic of transactions of 500 records, by producers with different compression; every second one is aborted."""
    name = f"{prefix}.public.t"
    create_topic(kafka_bootstrap, name, 1, cleanup_policy="compact")
    number = 0
    for codec in ("none", "gzip", "lz4", "zstd"):
        settings = {"bootstrap.servers": kafka_bootstrap, "compression.type": codec, "linger.ms": 5}
        producer = Producer({**settings, "transactional.id": f"{name}.{codec}"})
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            for _ in range(500):
                value = None if number % 7 == 0 else _event(number) if number % 5 else b"somebody's"
                headers = [("v", b"%016x.%08x" % (number, 1))] if number % 3 else None
                producer.produce(name, value, b'{"id":%d}' % number, 0, headers=headers)
                number += 1
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    return name


def _read(kafka_bootstrap: str, topic: str, start: int, end: int) -> set[Row]:
    share = TopicReadTask(
        options={"bootstrap.servers": kafka_bootstrap},
        python_options={"bootstrap_servers": [kafka_bootstrap]},
        topic=topic,
        partition=0,
        start=start,
        end=end,
        hashing=Hashing(Content(), False, True, 3),
    )
    found: set[Row] = set()
    for _, (side, data) in share():
        assert side == TOPIC, unpacked_error(data) if side == FAILURE else side
        columns = joined([data])
        found |= set(zip(*(columns.column(name).to_pylist() for name in columns.column_names), strict=True))
    return found


def test_both_readers_give_the_same_rows(kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both readers give the committed rows of any range; a batch that the quick one cannot unpack is left to the
    other.
    """
    assert topic_read_task.NativeRecords is not None, "compiled by `pip install --editable .`"
    native, end = topic_read_task.NativeRecords, 4 * (500 + 1) * 2
    for codec, more in (("none", 0), ("snappy", 100)):
        producer = Producer({"bootstrap.servers": kafka_bootstrap, "compression.type": codec})
        for number in range(5000, 5000 + more):
            producer.produce(topic, _event(number), b'{"id":%d}' % number, 0)
        producer.flush()
        ranges = [(0, end + more), (7, 300), (700, 1700), (501, 1002)]
        monkeypatch.setattr(topic_read_task, "NativeRecords", native)
        quick = [_read(kafka_bootstrap, topic, *each) for each in ranges]
        monkeypatch.setattr(topic_read_task, "NativeRecords", None)
        assert quick == [_read(kafka_bootstrap, topic, *each) for each in ranges]
        assert [len(each) for each in quick] == [2000 + more, 293, 500, 0]

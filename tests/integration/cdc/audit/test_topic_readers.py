"""The audit's two ways of reading a topic give the same rows, whatever its batches are like."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from cdc.audit.row_blocks import joined
from cdc.audit.row_content import Content
from spark_jobs.audit import topic_read_task
from spark_jobs.audit.side_tasks import FAILURE, TOPIC, Hashing
from spark_jobs.audit.topic_read_task import TopicReadTask
from spark_jobs.tasks.task_errors import unpacked_error
from tests.harness.topics import create_topic

Row = tuple[int, ...]


def _event(number: int) -> bytes:
    return b'{"before":null,"after":{"id":%d},"source":{"version":"0.1.0","seq":1},"op":"c"}' % number


@pytest.fixture
def topic(kafka_bootstrap: str, prefix: str) -> str:
    """Of 500 records a transaction, by producers that compress otherwise; every second one is aborted."""
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


def test_both_ways_read_the_same(kafka_bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed, of any range; with a batch that the quick way cannot unpack, the other one is taken."""
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

"""Every writer uses one partition rule: the same key bytes go to the same partition."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from cdc.config import load_config
from cdc.kafka import producer as outlet
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.publishing.publisher import Publisher
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import create_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline

PARTITIONS = 7


def test_every_writer_agrees_on_the_partition(
    make_pipeline: MakePipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot tasks, Spark's Java client and a Python client put a row into the partition that capture uses."""
    pipeline = make_pipeline(kafka={"partitions": PARTITIONS})
    pipeline.database.execute("CREATE TABLE t (a text, b int, PRIMARY KEY (a, b))")
    capture = pipeline.start()
    pipeline.database.execute(
        "INSERT INTO t SELECT repeat('kéy 🐘', i % 5) || i, -i * i FROM generate_series(1, 300) i"
    )
    pipeline.fence(while_running=capture)
    by_capture = {record.key: record.partition for record in pipeline.records("t")}
    assert len(by_capture) == 300
    assert set(by_capture.values()) == set(range(PARTITIONS))

    by_spark, by_python = f"{pipeline.prefix}.by-spark", f"{pipeline.prefix}.by-python"
    compiled, plain = f"{pipeline.prefix}.by-snapshot", f"{pipeline.prefix}.by-plain-snapshot"
    for name in (by_spark, by_python, compiled, plain):
        create_topic(pipeline.bootstrap, name, PARTITIONS)
    assert outlet.native_outlet is not None, "this test wants the compiled way, too"
    _write_as_a_snapshot(pipeline, compiled, by_capture)
    monkeypatch.setattr(outlet, "native_outlet", None)
    _write_as_a_snapshot(pipeline, plain, by_capture)
    rows = spark.createDataFrame([(bytearray(key), b"{}") for key in by_capture], "key binary, value binary")
    rows.write.format("kafka").option("kafka.bootstrap.servers", pipeline.bootstrap).option("topic", by_spark).save()
    with closing(KafkaProducer(bootstrap_servers=pipeline.bootstrap)) as producer:
        for key in by_capture:
            producer.send(by_python, key=key, value=b"{}")
        producer.flush()

    for name in (by_spark, by_python, compiled, plain):
        assert {record.key: record.partition for record in read_topic(pipeline.bootstrap, name)} == by_capture, name


def _write_as_a_snapshot(pipeline: Pipeline, name: str, keys: Collection[bytes]) -> None:
    """Write rows as `cdc.snapshot.initial_chunk` publishes those of a chunk."""
    kafka = load_config(pipeline.config).kafka
    publisher = Publisher(
        kafka.client_options(),
        transactional_id=name,
        transaction_timeout_seconds=60,
        max_message_bytes=kafka.max_message_bytes,
        parked_topic=control_topic(kafka.prefix, Control.PARKED),
    )
    publisher.fence(60)
    publisher.send_rows(name, [(key, b"{}") for key in keys], str(Version(800, 0)).encode())
    publisher.commit(60)
    publisher.abandon()

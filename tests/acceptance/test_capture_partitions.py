"""One partition rule for everybody who writes: the same key bytes land on the same partition."""

from __future__ import annotations

from contextlib import closing

from kafka import KafkaProducer
from pyspark.sql import SparkSession

from tests.harness.pipeline import MakePipeline
from tests.harness.records import read_topic
from tests.harness.topics import create_topic

PARTITIONS = 7


def test_capture_spark_and_python_clients_agree_on_the_partition(
    make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    """A copy (Spark's Java client) and a Python client put a row where capture puts it, so that its order is one."""
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
    for name in (by_spark, by_python):
        create_topic(pipeline.bootstrap, name, PARTITIONS)
    rows = spark.createDataFrame([(bytearray(key), b"{}") for key in by_capture], "key binary, value binary")
    rows.write.format("kafka").option("kafka.bootstrap.servers", pipeline.bootstrap).option("topic", by_spark).save()
    with closing(KafkaProducer(bootstrap_servers=pipeline.bootstrap)) as producer:
        for key in by_capture:
            producer.send(by_python, key=key, value=b"{}")
        producer.flush()

    for name in (by_spark, by_python):
        assert {record.key: record.partition for record in read_topic(pipeline.bootstrap, name)} == by_capture, name

"""Reads ranges of topics as a DataFrame, for batches whose rows Spark evaluates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cdc.config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Kafka's client fetches ahead, and the broker answers the next request on that connection only when the fetch has
# returned. So a fetch at the end of a topic waits only this long for more records.
_FETCH_WAIT_MS: Final = "10"


def read_topic_frame(
    spark: SparkSession,
    config: Config,
    start: Mapping[str, Sequence[int]],
    end: Mapping[str, Sequence[int]],
    **options: str,
) -> DataFrame:
    """Return the committed records of the topics from `start` up to, but not including, `end`."""
    frame: DataFrame = (
        spark.read.format("kafka")
        .options(**config.kafka.spark_options())
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", str(max(1_048_576, config.kafka.max_message_bytes)))
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("subscribe", ",".join(sorted(start)))
        .option("startingOffsets", _offsets_json(start))
        .option("endingOffsets", _offsets_json(end))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .options(**options)
        .load()
    )
    return frame.selectExpr("topic", "partition", "offset", "key", "value", "headers[0].value AS stamp", "timestamp")


def _offsets_json(offsets: Mapping[str, Sequence[int]]) -> str:
    """Return the offsets in the JSON form of Spark's Kafka source."""
    return json.dumps(
        {topic: {str(number): offset for number, offset in enumerate(places)} for topic, places in offsets.items()}
    )

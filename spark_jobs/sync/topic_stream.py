"""One Structured Streaming query over a store's topics. Spark plans the batches, and a callback applies each of them.

An error inside a batch is not raised through Spark, which would print pages of stack traces. It is kept and returned
by `failure`. The next query starts from the store's position in any case.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdc.config import Config
from cdc.errors import TailraceError, TransientError
from spark_jobs.sync.batches import Ends, Reading, StoreBatch
from spark_jobs.sync.checkpoint_folders import fresh_checkpoint
from spark_jobs.tasks.task_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Called for each batch, with its end offsets.
OnBatch = Callable[[StoreBatch, Ends], None]

# Spark writes its checkpoint in the background, only once. The position is in the store, and a start never reads the
# checkpoint. A checkpoint for each batch would take as long as the batch, since Hadoop starts a `chmod` for every
# file.
_NO_CHECKPOINTS: Final = {
    "asyncProgressTrackingEnabled": "true",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    "asyncProgressTrackingCheckpointIntervalMs": str(24 * 3_600_000),
}
_STOP_SECONDS: Final = 20.0
# Spark reads only records that exist, but Kafka's client fetches ahead. The broker answers the next request on that
# connection only when the fetch has returned. Spark's next request is for the end offsets, after each fetch.
_FETCH_WAIT_MS: Final = "10"


class TopicStream:
    """The streaming query. Spark decides the offsets of each batch, and `reading` decides how the batch is read."""

    def __init__(
        self,
        config: Config,
        spark: SparkSession,
        reading: Reading,
        *,
        name: str,
        starting: Ends,
        events_per_batch: int,
        trigger_milliseconds: int,
        on_batch: OnBatch,
    ) -> None:
        self._on_batch = on_batch
        self._reading = reading
        self._ends = {topic: list(offsets) for topic, offsets in starting.items()}
        self._turn = threading.Lock()
        self._started = threading.Event()
        self._closing = False
        self._failure: TailraceError | None = None
        self._checkpoint = fresh_checkpoint(Path(tempfile.gettempdir()))
        source = read_topic_stream(spark.readStream, config, starting, maxOffsetsPerTrigger=str(events_per_batch))
        self._query: StreamingQuery = (
            reading.frame(source)
            .writeStream.queryName(name)
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint))
            .options(**_NO_CHECKPOINTS)
            .trigger(processingTime=f"{trigger_milliseconds} milliseconds")
            .start()
        )
        self._started.set()

    def failure(self) -> TailraceError | None:
        """Return the error that has ended this query; None while it runs."""
        if self._failure is not None:
            return self._failure
        if self._query.isActive:
            return None
        error = self._query.exception()
        return TransientError(f"The stream has ended: {error_line(error or '')}.")

    def idle(self, call: Callable[[], None]) -> None:
        """Call this between two batches. Does nothing while a batch is running."""
        if self._turn.acquire(blocking=False):
            try:
                if self._failure is None:
                    call()
            except TailraceError as error:
                self._failure = error
            finally:
                self._turn.release()

    def close(self) -> None:
        """Stop the query. Waits a limited time for a running batch to end."""
        waited = self._turn.acquire(timeout=_STOP_SECONDS)
        self._closing = True
        if waited:
            self._turn.release()
        self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _batch(self, frame: DataFrame, _batch_id: int) -> None:
        self._started.wait()
        with self._turn:
            if self._closing or self._failure is not None:
                return
            try:
                start, self._ends = self._ends, {**self._ends, **self._batch_ends()}
                self._on_batch(self._reading.batch(frame, start, self._ends), self._ends)
            except TailraceError as error:
                self._failure = error
            except Exception as error:
                if not self._closing:
                    self._failure = TransientError(f"A batch failed: {error_line(error)}.")

    def _batch_ends(self) -> dict[str, list[int]]:
        """Return the batch's end offsets. They lie beyond its last record if control or compacted records follow."""
        offsets: Any = self._query._jsq.streamingQuery().availableOffsets().values().head().json()
        found: dict[str, dict[str, int]] = json.loads(offsets)
        return {topic: [by[str(number)] for number in range(len(by))] for topic, by in found.items()}


def read_topic_stream(reader: Any, config: Config, starting: Mapping[str, Sequence[int]], **options: str) -> DataFrame:
    """Return the committed records of the topics from the offsets `starting`, in the columns that tasks expect.

    `reader` is `spark.read` or `spark.readStream`.
    """
    frame: DataFrame = (
        reader.format("kafka")
        .options(**config.kafka.spark_options())
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", str(max(1_048_576, config.kafka.max_message_bytes)))
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("subscribe", ",".join(sorted(starting)))
        .option("startingOffsets", offsets_json(starting))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .options(**options)
        .load()
    )
    return frame.selectExpr("topic", "partition", "offset", "key", "value", "headers[0].value AS stamp", "timestamp")


def offsets_json(offsets: Mapping[str, Sequence[int]]) -> str:
    """Return the offsets in the JSON form of Spark's Kafka source."""
    return json.dumps(
        {topic: {str(number): offset for number, offset in enumerate(places)} for topic, places in offsets.items()}
    )

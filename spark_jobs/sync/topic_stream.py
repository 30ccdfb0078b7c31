"""One Structured Streaming query over a store's topics: Spark reads and plans, tasks write, the driver is told.

Whatever goes wrong inside a batch is kept and returned from `trouble`, not raised through Spark: Spark would print
pages, and a fresh query starts from the store's position in any case.
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Called for each batch, with where it ends.
OnBatch = Callable[[StoreBatch, Ends], None]

# Spark writes its checkpoint in the background, once: the position is in the store, and a start never reads the
# checkpoint. (Written for each batch, it takes as long as the batch: Hadoop starts a `chmod` for every file.)
_NO_CHECKPOINTS: Final = {
    "asyncProgressTrackingEnabled": "true",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    "asyncProgressTrackingCheckpointIntervalMs": str(24 * 3_600_000),
}
_STOP_SECONDS: Final = 20.0
# Spark reads only what it knows to be there. But Kafka's client asks ahead for more, and the broker answers whatever is
# asked next on that connection (Spark asks where the topic ends, after each fetch) only when that wait is over.
_FETCH_WAIT_MS: Final = "10"


class TopicStream:
    """Spark says what there is to read, batch by batch; `reading` how."""

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
        self._trouble: TailraceError | None = None
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

    def trouble(self) -> TailraceError | None:
        """What has ended this query, if anything has."""
        if self._trouble is not None:
            return self._trouble
        if self._query.isActive:
            return None
        error = self._query.exception()
        return TransientError(f"The stream has ended: {_first_line(error) if error else 'nobody says why'}.")

    def idle(self, call: Callable[[], None]) -> None:
        """Do this between two batches, if none is under way."""
        if self._turn.acquire(blocking=False):
            try:
                if self._trouble is None:
                    call()
            except TailraceError as error:
                self._trouble = error
            finally:
                self._turn.release()

    def close(self) -> None:
        """After the batch under way, if that ends soon."""
        waited = self._turn.acquire(timeout=_STOP_SECONDS)
        self._closing = True
        if waited:
            self._turn.release()
        self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _batch(self, frame: DataFrame, _batch_id: int) -> None:
        self._started.wait()
        with self._turn:
            if self._closing or self._trouble is not None:
                return
            try:
                start, self._ends = self._ends, {**self._ends, **self._batch_ends()}
                self._on_batch(self._reading.batch(frame, start, self._ends), self._ends)
            except TailraceError as error:
                self._trouble = error
            except Exception as error:
                if not self._closing:
                    self._trouble = TransientError(f"A batch failed: {_first_line(error)}.")

    def _batch_ends(self) -> dict[str, list[int]]:
        """Up to where this batch reads: beyond its last record, where control records or a compacted end follow."""
        offsets: Any = self._query._jsq.streamingQuery().availableOffsets().values().head().json()
        found: dict[str, dict[str, int]] = json.loads(offsets)
        return {topic: [by[str(number)] for number in range(len(by))] for topic, by in found.items()}


def read_topic_stream(reader: Any, config: Config, starting: Mapping[str, Sequence[int]], **options: str) -> DataFrame:
    """Committed records, as tasks want them. `reader`: `spark.read` or `spark.readStream`."""
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
    return json.dumps(
        {topic: {str(number): offset for number, offset in enumerate(places)} for topic, places in offsets.items()}
    )


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__

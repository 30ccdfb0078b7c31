"""Reads the broker's clock. Kafka uses this clock to decide which tombstones compaction removes.

Kafka has no request for the time. But it stamps each record of our topics with the time of the append
(`LogAppendTime`) and returns it. So each reading writes one small record to `<prefix>.__stores`, always under the same
key. Readers of that topic ignore records of unknown kinds.
"""

from __future__ import annotations

import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.kafka.clients import open_durable_producer
from cdc.names import Control, control_topic

_ANSWER_SECONDS = 10.0
_KEY = orjson.dumps({"clock": ""})
_VALUE = orjson.dumps({"format": 1})


def append_time_ms(message: Message) -> int:
    """Return the time at which the broker appended the record. 0: the record has only its producer's time."""
    kind, milliseconds = message.timestamp()
    return milliseconds if kind == TIMESTAMP_LOG_APPEND_TIME else 0


class BrokerClock:
    """Reads the broker's clock. Use it in one thread at a time, and close it in the thread that owns it."""

    def __init__(self, config: Config) -> None:
        self._topic = control_topic(config.kafka.prefix, Control.STORES)
        self._options = config.kafka.client_options()
        self._producer: Producer | None = None

    def now_ms(self) -> int:
        """Return the broker's time. Raises TransientError when the broker does not answer."""
        answers: list[tuple[KafkaError | None, int]] = []
        try:
            producer = self._connected()
            producer.produce(
                self._topic, _VALUE, _KEY, on_delivery=lambda error, sent: answers.append((error, append_time_ms(sent)))
            )
            producer.flush(_ANSWER_SECONDS)
        except (KafkaException, BufferError) as failure:
            raise TransientError(f"The broker's time could not be read: {failure}.") from failure
        if not answers:
            self.close()
            raise TransientError(f"The broker did not return its time within {_ANSWER_SECONDS:.0f} seconds.")
        error, time_ms = answers[-1]
        if error is not None:
            raise TransientError(f"{self._topic} cannot be written: {error.str()}.")
        if not time_ms:
            raise RefusedError(
                f"{self._topic} has message.timestamp.type=CreateTime. It does not show how long a store was down.",
                remedy=f"Set message.timestamp.type=LogAppendTime on {self._topic}.",
            )
        return time_ms

    def _connected(self) -> Producer:
        """Return the producer. Check first that the topic exists: the broker might create it with its own defaults."""
        if self._producer is None:
            producer = open_durable_producer(self._options)
            if self._topic not in producer.list_topics(timeout=_ANSWER_SECONDS).topics:
                raise TransientError(f"Topic {self._topic} is gone.", remedy="Start capture, which creates it again.")
            self._producer = producer
        return self._producer

    def close(self) -> None:
        """Close the producer and discard its unsent records."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1.0)
            self._producer = None

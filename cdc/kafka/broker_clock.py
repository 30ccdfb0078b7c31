"""The broker's clock: what time it is where Kafka decides which deletes to forget.

Kafka answers no question about the time, but it stamps each record of our topics with the time of the append
(`LogAppendTime`) and returns it. So asking writes one small record on `<prefix>.__stores`, under one key. Readers of
that topic skip records of a kind that they do not know.
"""

from __future__ import annotations

import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.names import Control, control_topic

_ANSWER_SECONDS = 10.0
_KEY = orjson.dumps({"clock": ""})
_VALUE = orjson.dumps({"format": 1})


def append_time_ms(message: Message) -> int:
    """When the broker appended the record; 0 where the record has only the time of its producer."""
    kind, milliseconds = message.timestamp()
    return milliseconds if kind == TIMESTAMP_LOG_APPEND_TIME else 0


class BrokerClock:
    """Used by one thread at a time. Close it in the thread that owns it."""

    def __init__(self, config: Config) -> None:
        self._topic = control_topic(config.kafka.prefix, Control.STORES)
        self._options = config.kafka.client_options()
        self._producer: Producer | None = None

    def now_ms(self) -> int:
        """Raises TransientError when the broker does not answer."""
        answers: list[tuple[KafkaError | None, int]] = []
        try:
            producer = self._connected()
            producer.produce(
                self._topic, _VALUE, _KEY, on_delivery=lambda error, sent: answers.append((error, append_time_ms(sent)))
            )
            producer.flush(_ANSWER_SECONDS)
        except (KafkaException, BufferError) as failure:
            raise TransientError(f"Kafka did not say what time it is: {failure}.") from failure
        if not answers:
            self.close()
            raise TransientError(f"Kafka did not say what time it is within {_ANSWER_SECONDS:.0f} seconds.")
        error, time_ms = answers[-1]
        if error is not None:
            raise TransientError(f"{self._topic} cannot be written: {error.str()}.")
        if not time_ms:
            raise RefusedError(
                f"{self._topic} has message.timestamp.type=CreateTime: how long a store was away cannot be known.",
                remedy=f"Set message.timestamp.type=LogAppendTime on {self._topic}.",
            )
        return time_ms

    def _connected(self) -> Producer:
        """Looks whether the topic is there: a broker may make one that is produced to, with settings of its own."""
        if self._producer is None:
            producer = Producer({**self._options, "acks": "all", "log_level": 0})
            if self._topic not in producer.list_topics(timeout=_ANSWER_SECONDS).topics:
                raise TransientError(f"Topic {self._topic} is gone.", remedy="Start capture, which makes it again.")
            self._producer = producer
        return self._producer

    def close(self) -> None:
        """Drop what is not sent."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1.0)
            self._producer = None

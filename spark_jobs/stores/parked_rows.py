"""What lies on `<prefix>.__parked` and is not settled: by capture (no store), or by a store's sync or bootstrap."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from cdc.config import Config
from cdc.control import committed_reader
from cdc.errors import TransientError
from cdc.names import Control, control_topic
from sinks.contract import refuse_newer
from spark_jobs.stores.parking import FORMAT

_ANSWER_SECONDS = 15.0


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """`place`: its own offset on __parked, by which commands name it; `store` is empty for a row that capture parked.

    `key` is cut at 512 bytes; `key_bytes` then says how long it is.
    """

    topic: str
    key: str
    version: str
    reason: str = ""
    store: str = ""
    partition: int = -1
    offset: int = -1
    parked_ms: int = 0
    key_bytes: int = 0
    settled: bool = False
    place: int = -1


def read_parked(config: Config) -> list[Parked]:
    """The last word about each row and store, of rows that are still parked; oldest first."""
    last: dict[tuple[str, str, str], Parked] = {}
    for parked in _all(config):
        name = (parked.store, parked.topic, parked.key)
        before = last.pop(name, None)
        if before is None or parked.version >= before.version:
            last[name] = parked
        else:
            last[name] = before
    return [parked for parked in last.values() if not parked.settled]


def _all(config: Config) -> Iterator[Parked]:
    name = control_topic(config.kafka.prefix, Control.PARKED)
    for message in read_partition(config, name, 0, OFFSET_BEGINNING):
        value = message.value()
        if value is not None:
            refuse_newer(msgspec.json.decode(value).get("format", FORMAT), FORMAT, f"a record on {name}")
            parked = msgspec.json.decode(value, type=Parked)
            yield msgspec.structs.replace(parked, place=message.offset())


def read_partition(config: Config, topic: str, partition: int, start: int) -> Iterator[Message]:
    """Every committed record of a partition up to its end as of now."""
    consumer = committed_reader(config.kafka.client_options())
    try:
        if topic not in consumer.list_topics(timeout=_ANSWER_SECONDS).topics:
            return
        consumer.assign([TopicPartition(topic, partition, start)])
        while True:
            message = consumer.poll(_ANSWER_SECONDS)
            if message is None:
                raise TransientError(f"Kafka gave nothing from {topic} for {_ANSWER_SECONDS:.0f} seconds.")
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
    except KafkaException as error:
        raise TransientError(f"{topic} could not be read: {error.args[0].str()}.") from error
    finally:
        consumer.close()

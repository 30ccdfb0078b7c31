"""`tailrace tail`: print the changes of a table as they are published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from cdc.commands.options import config_option, json_option
from cdc.config import Config, load_config
from cdc.config.tables import TableSelector
from cdc.errors import TransientError, UsageError
from cdc.kafka.clients import open_consumer
from cdc.kafka.failures import kafka_refusal
from cdc.names import topic

_SIGNS = {"c": "+", "r": "+", "u": "~", "d": "-", "t": "!"}


@click.command()
@click.argument("table")
@config_option
@json_option
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record in the topic.")
@click.option("--no-follow", is_flag=True, help="Stop at the current end of the topic.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
def tail(
    table: str, config_path: Path, as_json: bool, from_beginning: bool, no_follow: bool, limit: int | None
) -> None:
    """Print the committed changes of TABLE (schema.table) as they are published.

    A line shows the version, the operation (+ insert, ~ update, - delete, x tombstone of a delete, ! truncate), the key
    and the row after the change. With --json, a line is the whole record: topic, partition, offset, version, key and
    value.
    """
    config = load_config(config_path)
    name = _topic_of(config, table)
    records = _changes(config, name, from_beginning=from_beginning, follow=not no_follow)
    try:
        for count, message in enumerate(records, start=1):
            click.echo(_as_json(message) if as_json else _as_line(message))
            if count == limit:
                return
    except KafkaException as error:
        raise kafka_refusal(config.kafka.client_options()) or TransientError(
            f"Reading {name} failed: {error.args[0].str()}.",
            remedy=f"Check that Kafka answers at [kafka] bootstrap ({config.kafka.bootstrap}).",
        ) from error


def _topic_of(config: Config, table: str) -> str:
    try:
        selector = TableSelector.parse(table)
    except ValueError as error:
        raise UsageError(f"{table}: {error}.") from None
    if selector.table is None:
        raise UsageError(f"{table}: name one table as schema.table.")
    return topic(config.kafka.prefix, selector.schema, selector.table)


def _changes(config: Config, name: str, *, from_beginning: bool, follow: bool) -> Iterator[Message]:
    consumer = open_consumer(
        config.kafka.client_options(),
        {"auto.offset.reset": "latest", "enable.partition.eof": not follow, "fetch.wait.max.ms": 500},
    )
    try:
        found = consumer.list_topics(name, timeout=10).topics[name]
        if found.error is not None or not found.partitions:
            raise UsageError(
                f"There is no topic {name}.",
                remedy="`tailrace capture` creates it on its first start, for the tables that [source] tables selects.",
            )
        start = OFFSET_BEGINNING if from_beginning else OFFSET_END
        consumer.assign([TopicPartition(name, partition, start) for partition in found.partitions])
        unfinished = set(found.partitions)
        while unfinished:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def _version(message: Message) -> str:
    headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]  # ours are bytes
    return headers.get("v", b"").decode()


def _as_json(message: Message) -> str:
    value = message.value()
    record: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "version": _version(message),
        "key": orjson.loads(message.key() or b"null"),
        "value": None if value is None else orjson.loads(value),
    }
    return orjson.dumps(record).decode()


def _as_line(message: Message) -> str:
    key = (message.key() or b"").decode()
    value = message.value()
    if value is None:
        return f"{_version(message)}  x {key} (tombstone)"
    event = orjson.loads(value)
    row = "" if event["after"] is None else " " + orjson.dumps(event["after"]).decode()
    return f"{_version(message)}  {_SIGNS.get(event['op'], event['op'])} {key}{row}"

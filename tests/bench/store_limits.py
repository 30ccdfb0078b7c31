"""What the stores can take from anybody: ready-made documents and hashes, written without a look at what is there.

The rows are those of a topic. They are made into what is sent before the clock starts; only the sending is timed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import redis
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from elasticsearch import Elasticsearch
from elasticsearch.helpers import parallel_bulk

from cdc.lsn import Version
from cdc.stores.contract import Change, TableSchema
from cdc.stores.row_ids import row_id_of
from sinks.elasticsearch.writing.documents import Documents
from tests.bench.engines import PARTITIONS

PLAIN_INDEX: Final = "plain"
_THREADS: Final = 4
_BULK_BYTES: Final = 5_000_000  # as the config's default
_COMMANDS_PER_PIPELINE: Final = 1000
_WORKER_SECONDS: Final = 1800
#: FLUSHALL frees every key before it answers: minutes, where a client waits for seconds by default.
FLUSH_SECONDS: Final = 600

#: Documents of one bulk request, and clients of Redis: tried on the small topic, the faster one is the limit.
BULK_SIZES: Final = (500, 5000)
CLIENTS: Final = (1, 2)


class _Event(msgspec.Struct):
    after: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def changes(bootstrap: str, topic: str, partitions: Sequence[int]) -> Iterator[Change]:
    """Every row of these partitions; none of them was changed since it was copied."""
    decode = msgspec.json.Decoder(_Event).decode
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 1,
            "group.id": "bench",  # required, but never joined: partitions are assigned by hand
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        unfinished = set(partitions)
        while unfinished:
            for message in consumer.consume(num_messages=20_000, timeout=0.5):
                error = message.error()
                if error is None:
                    key: Any = message.key()
                    headers: Any = dict(message.headers() or ())
                    value: Any = message.value()
                    version = Version.parse(headers["v"].decode())
                    yield Change(row_id_of(key), key, version, bytes(decode(value).after))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def fill_search(url: str, table: TableSchema, mappings: dict[str, Any], bootstrap: str, size: int) -> Sent:
    """`parallel_bulk` into an index with the same mapping and the settings of a load, under the same ids."""
    lines = Documents(table).lines
    ready: list[Any] = []  # action and body as bytes: the client has nothing to encode
    for change in changes(bootstrap, table.topic, range(PARTITIONS)):
        body = lines(change, 0).split(b"\n", 2)[1]
        ready.append((b'{"index":{"_id":"%b"}}' % change.id.encode(), body))
    with Elasticsearch(url, request_timeout=120) as client:
        client.options(ignore_status=404).indices.delete(index=PLAIN_INDEX)
        settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
        client.indices.create(index=PLAIN_INDEX, mappings=mappings, settings=settings)
        try:
            began = time.monotonic()
            sent = 0
            for _ in parallel_bulk(
                client,
                ready,
                thread_count=_THREADS,
                chunk_size=size,
                max_chunk_bytes=_BULK_BYTES,
                expand_action_callback=_as_it_is,
                index=PLAIN_INDEX,
            ):
                sent += 1
            seconds = time.monotonic() - began
        finally:
            client.indices.delete(index=PLAIN_INDEX)
    return Sent(rows=sent, seconds=seconds)


def _as_it_is(action: Any) -> Any:
    return action


def fill_cache(url: str, table: TableSchema, bootstrap: str, clients: int) -> Sent:
    """Pipelines of plain HSET into an empty server, from one process or several; all begin at the same moment."""
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(clients + 1), context.Queue()
    shares = [list(range(first, PARTITIONS, clients)) for first in range(clients)]
    workers = [
        context.Process(target=_hset, args=(url, bootstrap, table.topic, share, ready, answers), daemon=True)
        for share in shares
    ]
    with redis.Redis.from_url(url, socket_timeout=FLUSH_SECONDS) as client:
        client.flushall()
        for worker in workers:
            worker.start()
        try:
            ready.wait(_WORKER_SECONDS)
            began = time.monotonic()
            rows = sum(answers.get(timeout=_WORKER_SECONDS) for _ in workers)
            seconds = time.monotonic() - began
        finally:
            for worker in workers:
                worker.join(10)
                worker.kill()
        client.flushall()
    return Sent(rows=rows, seconds=seconds)


def _hset(url: str, bootstrap: str, topic: str, partitions: list[int], ready: Any, answers: Any) -> None:
    """In a process of its own."""
    prefix, _, table = topic.partition(".")
    commands = [
        ("HSET", f"{prefix}:{table}:{each.id}", "row", each.row, "version", str(each.version), "generation", "1")
        for each in changes(bootstrap, topic, partitions)
    ]
    with redis.Redis.from_url(url, socket_timeout=FLUSH_SECONDS) as client:
        client.ping()
        ready.wait()
        for first in range(0, len(commands), _COMMANDS_PER_PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for command in commands[first : first + _COMMANDS_PER_PIPELINE]:
                pipeline.execute_command(*command)
            pipeline.execute()
    answers.put(len(commands))

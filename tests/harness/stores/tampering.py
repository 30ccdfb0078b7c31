"""Changes the stores and the topic of a pipeline without Tailrace's code: differences that an audit must find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from confluent_kafka import Producer
from elasticsearch import Elasticsearch

from cdc.names import index_name, redis_key
from tests.harness.stores.store_pipeline import StorePipeline


class Tampering:
    """Changes one table in the first generation of both stores."""

    def __init__(self, stores: StorePipeline, table: str, elasticsearch_url: str, redis_url: str) -> None:
        self.stores = stores
        self.prefix = stores.pipeline.prefix
        self.table = table
        self.index = index_name(self.prefix, "public", table) + "-g1"
        self.elasticsearch = Elasticsearch(elasticsearch_url)
        self.redis = redis.Redis.from_url(redis_url)

    def close(self) -> None:
        self.elasticsearch.close()
        self.redis.close()

    def key(self, row_id: object) -> str:
        return redis_key(self.prefix, "public", self.table, str(row_id))

    def document(self, row_id: object, change: Callable[[dict[str, Any]], None], version: int | None = None) -> None:
        """Change a document; `version` is the external version, unchanged by default."""
        found = self.elasticsearch.get(index=self.index, id=str(row_id))
        source = dict(found["_source"])
        change(source)
        number = found["_version"] if version is None else version
        self.elasticsearch.index(
            index=self.index, id=str(row_id), document=source, version=number, version_type="external_gte"
        )

    def row(self, row_id: object, **change: Any) -> None:
        row = json.loads(self.redis.hget(self.key(row_id), "row"))
        self.redis.hset(self.key(row_id), "row", json.dumps({**row, **change}, separators=(",", ":")))

    def produce(self, key: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
        """Produce the last record of a key again with other content."""
        records = self.stores.pipeline.records(self.table)
        last = [record for record in records if json.loads(record.key) == key and record.value is not None][-1]
        value = json.loads(json.dumps(last.value))
        change(value["after"])
        producer = Producer({"bootstrap.servers": self.stores.pipeline.bootstrap})
        headers: list[tuple[str, str | bytes | None]] = list(last.headers.items())
        producer.produce(last.topic, json.dumps(value).encode(), last.key, last.partition, headers=headers)
        producer.flush(10)


@contextmanager
def tampering_with(stores: StorePipeline, table: str, elasticsearch_url: str, redis_url: str) -> Iterator[Tampering]:
    tampering = Tampering(stores, table, elasticsearch_url, redis_url)
    try:
        yield tampering
    finally:
        tampering.close()

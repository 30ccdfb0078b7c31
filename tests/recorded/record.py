"""Writes down the lasting state of a stopped pipeline: `python -m tests.recorded.record tailrace.toml FOLDER`.

Run it with the Tailrace whose state is to be kept, on a pipeline that has done a bit of everything: a first copy, a
later one, a parked row, stores that were synced. The folder is named after the release.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from elasticsearch import Elasticsearch

from cdc.config import load_config
from cdc.config.stores import ElasticsearchConfig as ElasticsearchSettings
from cdc.config.stores import RedisConfig as RedisSettings

_KEPT_OF_EACH_KEY = 2


def record(config_path: Path, folder: Path) -> None:
    config = load_config(config_path)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"kafka": _topics(config.kafka.bootstrap, config.kafka.prefix)}
    for name, settings in config.stores.items():
        if isinstance(settings, ElasticsearchSettings):
            found["elasticsearch"] = {"store": name, "indices": _indices(settings.url.reveal(), config.kafka.prefix)}
        elif isinstance(settings, RedisSettings):
            found["redis"] = {"store": name, "hashes": _hashes(settings.url.reveal(), config.kafka.prefix)}
    for name, content in found.items():
        text = json.dumps({"prefix": config.kafka.prefix, "content": content}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n")


def _topics(bootstrap: str, prefix: str) -> dict[str, list[dict[str, Any]]]:
    """Control topics only: the last committed records of each key, oldest first, as compaction may leave them."""
    settings = {"group.id": "recording", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    found: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(consumer.list_topics(timeout=10).topics):
        if name.startswith(f"{prefix}.__"):
            consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
            records = found[name] = []
            while (message := consumer.poll(10)) is not None and message.error() is None:
                headers = {key: value.decode() for key, value in message.headers() or [] if isinstance(value, bytes)}
                key, value = message.key() or b"", message.value()
                text = value.decode() if value is not None else None
                records.append({"key": key.decode(), "value": text, "headers": headers})
            found[name] = [each for at, each in enumerate(records) if _is_late(records[at:], each["key"])]
    consumer.close()
    return found


def _is_late(rest: list[dict[str, Any]], key: str) -> bool:
    return sum(each["key"] == key for each in rest) <= _KEPT_OF_EACH_KEY


def _indices(url: str, prefix: str) -> dict[str, Any]:
    client = Elasticsearch(url)
    names = client.indices.get(index=f"{prefix}.*").body
    return {
        name: {
            "aliases": index["aliases"],
            "mappings": index["mappings"],
            "documents": [
                {"id": hit["_id"], "version": hit.get("_version"), "source": hit["_source"]}
                for hit in client.search(index=name, size=1000, version=True)["hits"]["hits"]
            ],
        }
        for name, index in names.items()
    }


def _hashes(url: str, prefix: str) -> dict[str, Any]:
    client = redis.Redis.from_url(url)
    names = list(client.scan_iter(f"{prefix}:*"))
    return {
        name.decode(): (
            {field.decode(): value.decode() for field, value in client.hgetall(name).items()}
            if client.type(name) == b"hash"
            else (client.get(name) or b"").decode()
        )
        for name in sorted(names)
    }


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))

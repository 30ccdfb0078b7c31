"""The four servers as container images: pins, settings, data folders. compose.yaml says the same; a test compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deploy import versions
from deploy.stack.model import HOST
from deploy.stack.servers import elasticsearch, kafka, postgres, redis


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """How one server runs as a container."""

    name: str
    port: int
    data: str
    environ: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()


def images(major: int, settings: Mapping[str, str], kafka_port: int) -> dict[str, Image]:
    """All four; Kafka has to know under which port clients reach it."""
    return {
        "postgres": Image(
            name=versions.POSTGRES_IMAGE.format(major=major),
            port=5432,
            data="/tailrace",
            environ={"POSTGRES_HOST_AUTH_METHOD": "trust", "PGDATA": "/tailrace/data"},
            command=["postgres", *_flags("-c", {**postgres.SETTINGS, **settings})],
        ),
        "kafka": Image(
            name=versions.KAFKA_IMAGE, port=9092, data="/var/lib/kafka/data", environ=_kafka_environ(kafka_port)
        ),
        "elasticsearch": Image(
            name=versions.ELASTICSEARCH_IMAGE,
            port=9200,
            data="/usr/share/elasticsearch/data",
            environ={
                **elasticsearch.SETTINGS,
                "path.repo": elasticsearch.CONTAINER_SNAPSHOTS,
                "ES_JAVA_OPTS": elasticsearch.HEAP,
            },
        ),
        "redis": Image(
            name=versions.REDIS_IMAGE,
            port=6379,
            data="/data",
            command=["redis-server", *(word for key, value in redis.SETTINGS.items() for word in (f"--{key}", value))],
        ),
    }


def _flags(flag: str, settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in (flag, f"{key}={value}")]


def _kafka_environ(port: int) -> dict[str, str]:
    """Given any setting, the image drops all its own defaults."""
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "/var/lib/kafka/data",
        **kafka.SETTINGS,
    }
    named = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in settings.items()}
    return {**named, "KAFKA_HEAP_OPTS": " ".join(kafka.HEAP)}

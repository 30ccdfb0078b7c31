"""`[kafka]`: brokers, topic settings, and the connection options for each client library."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from cdc import names
from cdc.config import kafka_clients
from cdc.config.settings import about, between, not_empty
from cdc.config.tls import TlsConfig
from cdc.secrets import Secret, SecretOptions


def _prefix_problem(prefix: str) -> str | None:
    return None if names.is_prefix(prefix) else names.PREFIX_RULE


_SERVER = re.compile(r"\s*[^\s/@,]+:(\d{1,5})\s*", re.ASCII)


def _bootstrap_problem(bootstrap: str) -> str | None:
    servers = [_SERVER.fullmatch(server) for server in bootstrap.split(",")]
    if all(server is not None and 0 < int(server[1]) < 65536 for server in servers):
        return None
    return "must be host:port, or several separated by commas"


def _own_settings(options: SecretOptions) -> str | None:
    taken = sorted(set(options) & kafka_clients.OWN_SETTINGS)
    if taken:
        return f"may not set {', '.join(taken)}: Tailrace sets it from the keys of [kafka] and [capture]"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = field(
        default="SCRAM-SHA-512", metadata=about("SASL mechanism")
    )
    username: str = field(metadata=about("User name", not_empty))
    password: Secret = field(metadata=about("Password of that user", not_empty))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    bootstrap: str = field(metadata=about("Bootstrap brokers: `host:port`, separated by commas", _bootstrap_problem))
    prefix: str = field(metadata=about("Prefix of every topic, index and key name", _prefix_problem))
    partitions: int = field(
        default=4,
        metadata=about("Partitions of each table topic; cannot change once the topic exists", between(1, 10_000)),
    )
    replication_factor: int = field(
        default=1, metadata=about("Replicas of each partition; use 3 in production", between(1, 100))
    )
    max_message_bytes: int = field(
        default=8_388_608,
        metadata=about(
            "Largest record (the topics' `max.message.bytes`); capture parks a larger row", between(10_000, 100_000_000)
        ),
    )
    delete_retention_hours: float = field(
        default=168,
        metadata=about("How long topics keep tombstones, and so how long a store may lag", between(0.001, 87_600)),
    )
    options: SecretOptions = field(
        default_factory=SecretOptions,
        metadata=about("librdkafka properties for the producer, passed on unchanged", _own_settings),
    )
    tls: TlsConfig | None = field(default=None, metadata=about("TLS to the brokers; the section enables it"))
    sasl: SaslConfig | None = field(default=None, metadata=about("SASL; the section enables it"))

    @property
    def delete_retention_milliseconds(self) -> int:
        return round(self.delete_retention_hours * 3_600_000)

    @property
    def security_protocol(self) -> str:
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.sasl is None else f"SASL_{transport}"

    def client_options(self) -> dict[str, str]:
        """Return options for confluent-kafka (librdkafka), with passwords."""
        return kafka_clients.librdkafka(self.bootstrap, self.security_protocol, self.tls, self.sasl) | {
            "message.max.bytes": str(self.max_message_bytes),
            # Connect at once: by default librdkafka checks only once per second whether it needs a connection.
            "enable.sparse.connections": "false",
            **self.options,
        }

    def python_options(self) -> dict[str, Any]:
        """Return options for kafka-python's consumer, producer and admin client, with passwords."""
        return kafka_clients.kafka_python(self.bootstrap, self.security_protocol, self.tls, self.sasl, self.options)

    def spark_options(self) -> dict[str, str]:
        """Return options for Spark's Kafka source (`kafka.` + the Java client's names), with passwords and key text."""
        return kafka_clients.spark(self.bootstrap, self.security_protocol, self.tls, self.sasl)

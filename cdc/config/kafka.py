"""`[kafka]`: the broker, the topics' shape, and the same connection settings in the words of each client library."""

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
    return "must be host:port, several separated by commas"


def _own_settings(options: SecretOptions) -> str | None:
    taken = sorted(set(options) & kafka_clients.OWN_SETTINGS)
    if taken:
        return f"may not set {', '.join(taken)}: Tailrace sets that itself, from the keys of [kafka] and [capture]"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = field(
        default="SCRAM-SHA-512", metadata=about("How the client proves who it is")
    )
    username: str = field(metadata=about("User", not_empty))
    password: Secret = field(metadata=about("That user's password", not_empty))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    bootstrap: str = field(metadata=about("Brokers to start from: `host:port`, commas between", _bootstrap_problem))
    prefix: str = field(metadata=about("First part of every topic, index and key", _prefix_problem))
    partitions: int = field(
        default=4, metadata=about("Partitions of a table's topic; fixed once it exists", between(1, 10_000))
    )
    replication_factor: int = field(
        default=1, metadata=about("Copies of each partition; 3 in production", between(1, 100))
    )
    max_message_bytes: int = field(
        default=8_388_608,
        metadata=about(
            "Largest record (the topics' `max.message.bytes`); a larger row is parked", between(10_000, 100_000_000)
        ),
    )
    delete_retention_hours: float = field(
        default=168,
        metadata=about("How long a store may be behind: tombstones are kept this long", between(0.001, 87_600)),
    )
    options: SecretOptions = field(
        default_factory=SecretOptions,
        metadata=about("librdkafka properties for the producer, passed on as they are", _own_settings),
    )
    tls: TlsConfig | None = field(default=None, metadata=about("TLS to the brokers; the section turns it on"))
    sasl: SaslConfig | None = field(default=None, metadata=about("SASL; the section turns it on"))

    @property
    def delete_retention_milliseconds(self) -> int:
        return round(self.delete_retention_hours * 3_600_000)

    @property
    def security_protocol(self) -> str:
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.sasl is None else f"SASL_{transport}"

    def client_options(self) -> dict[str, str]:
        """For confluent-kafka (librdkafka); holds passwords."""
        return kafka_clients.librdkafka(self.bootstrap, self.security_protocol, self.tls, self.sasl) | {
            "message.max.bytes": str(self.max_message_bytes),
            # Connect at once: by default librdkafka looks once a second whether a connection is wanted.
            "enable.sparse.connections": "false",
            **self.options,
        }

    def python_options(self) -> dict[str, Any]:
        """For kafka-python's consumer, producer and admin client; holds passwords."""
        return kafka_clients.kafka_python(self.bootstrap, self.security_protocol, self.tls, self.sasl, self.options)

    def spark_options(self) -> dict[str, str]:
        """For Spark's Kafka source (`kafka.` + the Java client's names); holds passwords and the key's text."""
        return kafka_clients.spark(self.bootstrap, self.security_protocol, self.tls, self.sasl)

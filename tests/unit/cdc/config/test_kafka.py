"""One [kafka] section gives the same connection to three clients; their own code checks the names."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdc.config import KafkaConfig, parse_config

TEXT = """
[source]
dsn = "host=h"
[kafka]
bootstrap = "a:9092, b:9092"
prefix = "shop"
"""
SECURE = """
[kafka.tls]
verify_hostname = false
[kafka.sasl]
mechanism = "SCRAM-SHA-256"
username = "user"
password = 'p"\\ss'
[kafka.options]
"client.id" = "me"
"reconnect.backoff.ms" = 250
"""


def kafka(more: str = "", folder: Path = Path("/etc/tailrace")) -> KafkaConfig:
    return parse_config(TEXT + more, file=folder / "tailrace.toml", environment={}).kafka


def test_librdkafka_accepts_our_options() -> None:
    """librdkafka accepts the names for TLS, SASL, the size limit and pass-through options."""
    options = kafka(SECURE).client_options()
    assert options == {
        "bootstrap.servers": "a:9092, b:9092",
        "security.protocol": "SASL_SSL",
        "socket.connection.setup.timeout.ms": "30000",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "user",
        "sasl.password": 'p"\\ss',
        "message.max.bytes": "8388608",
        "enable.sparse.connections": "false",
        "client.id": "me",
        "reconnect.backoff.ms": "250",
    }
    Producer({**options, "bootstrap.servers": ""})  # raises for a property that it does not know


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")  # kafka-python, when it is imported
def test_kafka_python_accepts_our_options() -> None:
    """All clients of kafka-python accept the option names; each refuses names that it does not know."""
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer  # noqa: PLC0415 - under the filter above

    options = kafka(SECURE).python_options()
    assert options == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "security_protocol": "SASL_SSL",
        "request_timeout_ms": 30000,
        "ssl_check_hostname": False,
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "user",
        "sasl_plain_password": 'p"\\ss',
        "client_id": "me",
        "reconnect_backoff_ms": 250,
    }
    files = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"}
    for client in (KafkaConsumer, KafkaProducer, KafkaAdminClient):
        assert options.keys() | files <= client.DEFAULT_CONFIG.keys()


def test_spark_gets_the_java_names_and_the_certificates_text(tmp_path: Path) -> None:
    """Spark's options hold the certificates' text, since executors lack the files, and correct JAAS quoting."""
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").write_text(f"the {name}")
    tls = 'verify_hostname = false\nca = "ca.pem"\ncert = "cert.pem"\nkey = "key.pem"\nkey_password = "kp"'
    options = kafka(SECURE.replace("verify_hostname = false", tls), tmp_path).spark_options()
    assert options == {
        "kafka.bootstrap.servers": "a:9092, b:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.socket.connection.setup.timeout.ms": "30000",
        "kafka.request.timeout.ms": "30000",
        "kafka.default.api.timeout.ms": "60000",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "the ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "the cert",
        "kafka.ssl.keystore.key": "the key",
        "kafka.ssl.key.password": "kp",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="user" password="p\\"\\\\ss";',
    }


@pytest.mark.parametrize(
    ("more", "protocol"),
    [
        ("", "PLAINTEXT"),
        ("tls = {}", "SSL"),
        ('sasl = { username = "u", password = "p" }', "SASL_PLAINTEXT"),
        ('tls = {}\nsasl = { username = "u", password = "p" }', "SASL_SSL"),
    ],
)
def test_the_protocol_follows_from_the_sections(more: str, protocol: str) -> None:
    """A present section enables its part, also when empty, for all three clients."""
    section = kafka(more)
    assert section.client_options()["security.protocol"] == protocol
    assert section.python_options()["security_protocol"] == protocol
    assert section.spark_options()["kafka.security.protocol"] == protocol

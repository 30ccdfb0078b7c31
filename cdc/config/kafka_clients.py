"""Connection options of three Kafka clients: librdkafka, kafka-python, and the Java client inside Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cdc.config.kafka import SaslConfig
    from cdc.config.tls import TlsConfig

# Time limits for a connection, for one request, and for a call that may need several requests. Set explicitly,
# because the clients' own defaults differ and change between releases.
CONNECT_MS: Final = 30_000
REQUEST_MS: Final = 30_000
CALL_MS: Final = 60_000

#: librdkafka properties that users may not set: exactly-once delivery depends on them, or they have their own key.
OWN_SETTINGS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "message.max.bytes",
        "metadata.broker.list",
        "partitioner",
        "request.required.acks",
        "transaction.timeout.ms",
        "transactional.id",
    }
)

# librdkafka properties that kafka-python's clients take over.
_PYTHON_NAMES = {
    "client.id": ("client_id", str),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def librdkafka(bootstrap: str, protocol: str, tls: TlsConfig | None, sasl: SaslConfig | None) -> dict[str, str]:
    options = {
        "bootstrap.servers": bootstrap,
        "security.protocol": protocol,
        # socket.timeout.ms is not set: librdkafka derives it from the transaction timeout, and each call has its own.
        "socket.connection.setup.timeout.ms": str(CONNECT_MS),
    }
    if tls is not None:
        files = {"ssl.ca.location": tls.ca, "ssl.certificate.location": tls.cert, "ssl.key.location": tls.key}
        options |= {name: str(path) for name, path in files.items() if path is not None}
        if tls.key_password is not None:
            options["ssl.key.password"] = tls.key_password.reveal()
        options["ssl.endpoint.identification.algorithm"] = "https" if tls.verify_hostname else "none"
    if sasl is not None:
        options["sasl.mechanism"] = sasl.mechanism
        options["sasl.username"] = sasl.username
        options["sasl.password"] = sasl.password.reveal()
    return options


def kafka_python(
    bootstrap: str, protocol: str, tls: TlsConfig | None, sasl: SaslConfig | None, extra: Mapping[str, str]
) -> dict[str, Any]:
    servers = [server.strip() for server in bootstrap.split(",")]
    options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "security_protocol": protocol,
        "request_timeout_ms": REQUEST_MS,
    }
    if tls is not None:
        files = {"ssl_cafile": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
        options |= {name: str(path) for name, path in files.items() if path is not None}
        if tls.key_password is not None:
            options["ssl_password"] = tls.key_password.reveal()
        options["ssl_check_hostname"] = tls.verify_hostname
    if sasl is not None:
        options["sasl_mechanism"] = sasl.mechanism
        options["sasl_plain_username"] = sasl.username
        options["sasl_plain_password"] = sasl.password.reveal()
    for name, value in extra.items():
        if name in _PYTHON_NAMES:
            python_name, convert = _PYTHON_NAMES[name]
            options[python_name] = convert(value)
    return options


def spark(bootstrap: str, protocol: str, tls: TlsConfig | None, sasl: SaslConfig | None) -> dict[str, str]:
    options = {
        "bootstrap.servers": bootstrap,
        "security.protocol": protocol,
        "socket.connection.setup.timeout.ms": str(CONNECT_MS),
        "request.timeout.ms": str(REQUEST_MS),
        "default.api.timeout.ms": str(CALL_MS),
    }
    if tls is not None:
        options |= _java_tls(tls)
    if sasl is not None:
        options["sasl.mechanism"] = sasl.mechanism
        options["sasl.jaas.config"] = _jaas(sasl)
    return {f"kafka.{name}": value for name, value in options.items()}


def _java_tls(tls: TlsConfig) -> dict[str, str]:
    # Certificates are passed as text: executors on other machines do not have the files, and the Java client can read a
    # certificate and its key only from a single file.
    options = {"ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else ""}
    if tls.ca is not None:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = tls.ca.read_text()
    if tls.cert is not None and tls.key is not None:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = tls.cert.read_text()
        options["ssl.keystore.key"] = tls.key.read_text()
        if tls.key_password is not None:
            options["ssl.key.password"] = tls.key_password.reveal()
    return options


def _jaas(sasl: SaslConfig) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    module = _LOGIN_MODULES[sasl.mechanism]
    return f"{module} required username={quoted(sasl.username)} password={quoted(sasl.password.reveal())};"

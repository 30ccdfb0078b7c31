"""Finds out why a client could not connect to Kafka: a wrong certificate or password, or unavailable brokers.

With a wrong certificate or password, librdkafka and kafka-python reconnect for ever and report only a timeout. So this
module opens a client of its own and reads the errors that librdkafka reports to its callback. A retry does not help
against a wrong certificate or password, so the command stops (`RefusedError`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from socket import create_connection

from confluent_kafka import KafkaError

from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.kafka.clients import open_offset_client
from cdc.secrets import redact

# librdkafka reports these errors, among other cases, when a broker rejects the connection.
_COULD_NOT_CONNECT = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
)
_ANSWER_SECONDS = 6.0
_OTHER_ADDRESS_SECONDS = 2.0
_POLL_SECONDS = 0.1


def kafka_failure(options: Mapping[str, str], what: str, error: KafkaError) -> TailraceError:
    """Return the exception to raise for an error of librdkafka. `what`: the operation that failed."""
    message = f"{what}: {error.str()}"
    return unreachable(options, message) if error.code() in _COULD_NOT_CONNECT else TransientError(message)


def unreachable(options: Mapping[str, str], message: str) -> TailraceError:
    """Return the exception to raise when a client could not connect.

    `options`: librdkafka's. `message`: for the TransientError, if the brokers are unavailable.
    """
    return kafka_refusal(options) or TransientError(message)


def kafka_refusal(options: Mapping[str, str]) -> RefusedError | None:
    """Return the error if all brokers reject the connection.

    None: a broker answers, the brokers are unavailable, or the connection uses neither TLS nor SASL.
    """
    if options.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
        return None
    error = _refused_by_all(options)
    if error is None:
        return None
    if error.code() == KafkaError._AUTHENTICATION:
        return RefusedError(
            f"Kafka rejected the login: {_said(error)}.",
            remedy="Correct mechanism, username and password in [kafka.sasl], or the user at the brokers.",
        )
    return RefusedError(
        f"Kafka's certificate was not accepted: {_what_is_wrong(options) or _said(error)}.",
        remedy="Set [kafka.tls] ca to the authority that signed it, and [kafka] bootstrap to a name in it.",
    )


def _refused_by_all(options: Mapping[str, str]) -> KafkaError | None:
    """Return the first rejection, once librdkafka has failed to connect to every broker. None: a broker answers."""
    errors: list[KafkaError] = []
    give_up_at = time.monotonic() + _ANSWER_SECONDS
    are_down = False
    # Close the client here: the garbage collector may close it in one of the client's own threads.
    with open_offset_client(options, {"error_cb": errors.append}) as client:
        while time.monotonic() < give_up_at:
            client.poll(_POLL_SECONDS)
            refused = next(filter(_is_refusal, errors), None)
            if not are_down and any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors):
                # A host name may have several addresses. If no server is at the first, librdkafka tries the next.
                are_down, give_up_at = True, min(give_up_at, time.monotonic() + _OTHER_ADDRESS_SECONDS)
            if are_down and refused is not None:
                return refused
    return None


def _is_refusal(error: KafkaError) -> bool:
    """Whether the error is final. An aborted handshake is not (_TRANSPORT, or _SSL without "certificate" in its text):
    the broker may be restarting.
    """
    is_certificate = error.code() == KafkaError._SSL and "certificate" in error.str()
    return bool(is_certificate or error.code() == KafkaError._AUTHENTICATION)


def _said(error: KafkaError) -> str:
    """Return the error's text without address and time: `sasl_ssl://host:1/bootstrap: … (after 3ms in state X)`."""
    return redact(error.str().partition(": ")[2].rpartition(" (after ")[0] or error.str())


def _what_is_wrong(options: Mapping[str, str]) -> str | None:
    """Connect with Python's TLS and return its error, which distinguishes a wrong authority from a wrong host name.

    librdkafka has the same message for both.
    """
    for server in options["bootstrap.servers"].split(","):
        host, _, port = server.strip().rpartition(":")
        name = host.strip("[]")
        with suppress(OSError, ValueError):
            context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
            context.check_hostname = options.get("ssl.endpoint.identification.algorithm") != "none"
            try:
                with create_connection((name, int(port)), _ANSWER_SECONDS) as plain:
                    context.wrap_socket(plain, server_hostname=name).close()
            except ssl.SSLCertVerificationError as error:
                return f"{error.verify_message.rstrip('.')} ({host}:{port})"
    return None

"""Why no broker lets us in, asked after a client could not connect: clients report only a timeout.

librdkafka and kafka-python connect again for ever where a certificate is not accepted or a password is wrong, and
report a timeout. A client of its own, which only listens to what librdkafka says meanwhile, tells this apart from a
broker that is away. Another try does not help against it, so the command stops (`RefusedError`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from socket import create_connection
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.secrets import redact

# What librdkafka reports, among others, for a broker that does not let us in.
_COULD_NOT_CONNECT = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
)
_ANSWER_SECONDS = 6.0
_OTHER_ADDRESS_SECONDS = 2.0
_LOOK_SECONDS = 0.1


def kafka_failure(options: Mapping[str, str], what: str, error: KafkaError) -> TailraceError:
    """What to raise for an error of librdkafka; `what` could not be done."""
    message = f"{what}: {error.str()}"
    return unreachable(options, message) if error.code() in _COULD_NOT_CONNECT else TransientError(message)


def unreachable(options: Mapping[str, str], message: str) -> TailraceError:
    """What to raise when a client could not connect. `options`: librdkafka's; `message` holds if brokers are away."""
    return kafka_refusal(options) or TransientError(message)


def kafka_refusal(options: Mapping[str, str]) -> RefusedError | None:
    """None where the brokers answer, are away, or have nothing to refuse by (no TLS and no SASL)."""
    if options.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
        return None
    error = _refused_by_all(options)
    if error is None:
        return None
    if error.code() == KafkaError._AUTHENTICATION:
        return RefusedError(
            f"Kafka does not let us in: {_said(error)}.",
            remedy="Correct mechanism, username and password in [kafka.sasl], or the user at the brokers.",
        )
    return RefusedError(
        f"Kafka's certificate was not accepted: {_what_is_wrong(options) or _said(error)}.",
        remedy="Set [kafka.tls] ca to the authority that signed it, and [kafka] bootstrap to a name in it.",
    )


def _refused_by_all(options: Mapping[str, str]) -> KafkaError | None:
    """The first refusal, once librdkafka has tried every broker in vain; None while one of them answers."""
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**options, "log_level": 0, "error_cb": errors.append}
    give_up_at = time.monotonic() + _ANSWER_SECONDS
    are_down = False
    # Closed here and not by the garbage collector, which may run in a thread of the client's own.
    with AdminClient(settings) as client:
        while time.monotonic() < give_up_at:
            client.poll(_LOOK_SECONDS)
            refused = next(filter(_is_refusal, errors), None)
            if not are_down and any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors):
                # A name may have several addresses, and nothing may listen on the first: librdkafka tries the next.
                are_down, give_up_at = True, min(give_up_at, time.monotonic() + _OTHER_ADDRESS_SECONDS)
            if are_down and refused is not None:
                return refused
    return None


def _is_refusal(error: KafkaError) -> bool:
    """A handshake that broke off (_TRANSPORT, or _SSL without a word of certificates) may be a broker that restarts."""
    is_certificate = error.code() == KafkaError._SSL and "certificate" in error.str()
    return bool(is_certificate or error.code() == KafkaError._AUTHENTICATION)


def _said(error: KafkaError) -> str:
    """Without the address before it and the time behind it: `sasl_ssl://host:1/bootstrap: … (after 3ms in state X)`."""
    return redact(error.str().partition(": ")[2].rpartition(" (after ")[0] or error.str())


def _what_is_wrong(options: Mapping[str, str]) -> str | None:
    """librdkafka has one message for a wrong authority and a wrong name; Python's TLS tells which."""
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

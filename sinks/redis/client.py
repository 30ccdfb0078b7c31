"""The client, made from the config, and the server's errors in our words: try again, or refuse."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cdc.config.stores import Redis as Settings
from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.secrets import redact

CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 60
_DENIED: Final = ("NOPERM", "NOAUTH", "WRONGPASS")


def open_client(settings: Settings) -> redis.Redis:
    """Does not connect yet. One connection, and nothing is repeated inside: a new connection may be a new server."""
    options: dict[str, Any] = {}
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password.reveal()
    if settings.tls is not None:
        options |= _tls(settings)
    return redis.Redis.from_url(
        settings.url.reveal(),
        single_connection_client=False,
        max_connections=1,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        **options,
    )


def _tls(settings: Settings) -> dict[str, Any]:
    tls = settings.tls
    assert tls is not None  # noqa: S101 - the caller has looked
    return {
        "ssl_ca_certs": str(tls.ca) if tls.ca else None,
        "ssl_certfile": str(tls.cert) if tls.cert else None,
        "ssl_keyfile": str(tls.key) if tls.key else None,
        "ssl_password": tls.key_password.reveal() if tls.key_password else None,
        "ssl_check_hostname": tls.verify_hostname,
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise _translate(error) from error
    except ssl.SSLError as error:
        raise _untrusted(error) from error
    except OSError as error:
        raise TransientError(f"Redis does not answer: {error}.") from error


def _translate(error: redis.RedisError) -> TailraceError:
    text = str(error)
    word = text.partition(" ")[0]
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError) or word in _DENIED:
        return RefusedError(
            f"Redis denies this: {redact(text)}.", remedy="Give the store's user the permissions in docs/stores.md."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return _untrusted(error)
    if isinstance(error, redis.exceptions.OutOfMemoryError) or word == "OOM":
        return TransientError("Redis is full (maxmemory).", remedy="Give it more memory; the sync goes on by itself.")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return TransientError(f"Redis does not answer: {redact(text)}.")
    if word in ("READONLY", "MISCONF", "MASTERDOWN", "LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS"):
        return TransientError(f"Redis cannot do this now: {redact(text)}.")
    return RefusedError(f"Redis refuses this: {redact(text)}.")


def _untrusted(error: Exception) -> RefusedError:
    return RefusedError(
        f"Redis's certificate was not accepted: {redact(str(error))}.",
        remedy="Check the store's url and [stores.NAME.tls].",
    )

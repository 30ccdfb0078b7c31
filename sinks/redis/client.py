"""Opens the Redis client from the config, runs scripts, and translates Redis errors into `TransientError` or
`RefusedError`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha1
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError
from redis.retry import Retry

from cdc.config.stores import RedisConfig as Settings
from cdc.config.tls import TlsConfig
from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.secrets import redact

CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 60
#: The keys and the arguments of one call of a script.
Call = tuple[Sequence[str | bytes], Sequence[str | bytes | int]]
_DENIED: Final = ("NOPERM", "NOAUTH", "WRONGPASS")
_PASSING: Final = (
    "READONLY",
    "MISCONF",
    "MASTERDOWN",
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "UNKILLABLE",
)
_WORD = re.compile(r"(?:^|[-\s])([A-Z]{3,})\b")
_QUOTES_COMMAND: Final = "of pipeline caused error: "


def open_redis(settings: Settings) -> redis.Redis:
    """Return a client with one connection. It connects on first use.

    The client retries nothing by itself, because a new connection may reach a different server.
    """
    options: dict[str, Any] = {}
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password.reveal()
    if settings.url.reveal().startswith("rediss:"):
        options |= _tls(settings.tls or TlsConfig())
    return redis.Redis.from_url(
        settings.url.reveal(),
        max_connections=1,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        **options,
    )


def _tls(tls: TlsConfig) -> dict[str, Any]:
    return {
        "ssl_ca_certs": str(tls.ca) if tls.ca else None,
        "ssl_certfile": str(tls.cert) if tls.cert else None,
        "ssl_keyfile": str(tls.key) if tls.key else None,
        "ssl_password": tls.key_password.reveal() if tls.key_password else None,
        "ssl_check_hostname": tls.verify_hostname,
        "ssl_cert_reqs": "required",
    }


class Script:
    """A Lua script, called by its digest. Loads the script again if the server lacks it (restart, `SCRIPT FLUSH`)."""

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._client = client
        self._text = text
        self._digest = sha1(text.encode(), usedforsecurity=False).hexdigest().encode()

    def __call__(self, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]) -> Any:
        return self.pipelined([(keys, arguments)])[0]

    def pipelined(self, calls: Sequence[Call]) -> list[Any]:
        """Run all calls in one pipeline, and return their results. See `send`."""
        return self.send(
            [self.head(len(keys), len(arguments)) + _packed([*keys, *arguments]) for keys, arguments in calls]
        )

    def head(self, keys: int, arguments: int) -> bytes:
        """Return the head of an EVALSHA command, in wire format, for this many keys and arguments.

        The caller appends each key and argument as encoded by `bulk`.
        """
        return b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % (3 + keys + arguments, self._digest) + bulk(b"%d" % keys)

    def send(self, calls: Sequence[bytes]) -> list[Any]:
        """Send all encoded calls in one pipeline, and return their results.

        If the server lacks the script, this loads it and sends all calls again. That is safe because the scripts may be
        repeated.
        """
        try:
            return self._send(calls)
        except NoScriptError:
            with translated():
                self._client.script_load(self._text)
            return self._send(calls)

    def _send(self, calls: Sequence[bytes]) -> list[Any]:
        try:
            return _exchanged(self._client, calls)
        except NoScriptError:
            raise
        except (redis.RedisError, OSError) as error:
            raise translate(error) from error


def bulk(data: bytes) -> bytes:
    """Encode one value as a RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _packed(values: Sequence[str | bytes | int]) -> bytes:
    return b"".join([bulk(value if isinstance(value, bytes) else str(value).encode()) for value in values])


def _exchanged(client: redis.Redis, calls: Sequence[bytes]) -> list[Any]:
    """Send every call before reading the first reply, and read every reply before raising the first error.

    Unread replies would otherwise be taken for the replies to the next calls on this connection.
    """
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command(calls)
        answers = [_answer(connection) for _ in calls]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


@contextmanager
def translated() -> Iterator[None]:
    """Raise Redis errors of the `with` block as `TransientError` or `RefusedError`."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise translate(error) from error


def translate(error: Exception) -> TailraceError:
    """Return the Tailrace error for a Redis error, chosen by the error code.

    The code is the reply's first word. In an error from inside a script the code comes later in the text.
    """
    text = redact(str(error).rpartition(_QUOTES_COMMAND)[2])  # the quoted command may contain a row's values
    word = next(iter(_WORD.findall(text)), "")
    if isinstance(error, redis.AuthenticationError | NoPermissionError) or word in _DENIED:
        return RefusedError(
            f"Redis denies access: {text}.",
            remedy="Grant the store's user the permissions listed in docs/reference/stores.md.",
        )
    if "certificate verify failed" in text.lower().replace("_", " "):
        return RefusedError(
            f"Redis's certificate was not accepted: {text}.", remedy="Check the store's url and [stores.NAME.tls]."
        )
    if word == "OOM":
        return TransientError(
            "Redis is out of memory (maxmemory).", remedy="Raise maxmemory. The sync then continues by itself."
        )
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return TransientError(f"Redis does not answer: {text}.")
    if word in _PASSING:
        return TransientError(f"Redis cannot run the command now: {text}.")
    return RefusedError(f"Redis rejects the command: {text}.")

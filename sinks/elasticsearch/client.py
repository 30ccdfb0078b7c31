"""The client, made from the config, and the server's errors in our words: try again, refuse, or gone."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from elastic_transport import NodeConfig, TlsError, TransportError, Urllib3HttpNode
from elasticsearch import ApiError, Elasticsearch
from elasticsearch.serializer import JsonSerializer

from cdc.config.stores import ElasticsearchConfig as Settings
from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.secrets import redact
from cdc.stores.contract import PositionLostError

REQUEST_SECONDS: Final = 60
_PORTS: Final = {"http": 80, "https": 443}


class RawJson(JsonSerializer):
    """Answers as bytes: what reads rows decodes them itself, so that no number changes its spelling."""

    def loads(self, data: bytes) -> Any:
        return data if isinstance(data, bytes) else bytes(data)


class _AnyNameNode(Urllib3HttpNode):
    """urllib3 looks at the host name by itself where the TLS context does not."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.pool.assert_hostname = False  # type: ignore[attr-defined]


def open_elasticsearch(settings: Settings, *, raw: bool = False) -> Elasticsearch:
    """Does not connect yet. Nothing is retried inside: callers know what may be repeated."""
    options: dict[str, Any] = {}
    if settings.username is not None and settings.password is not None:
        options["basic_auth"] = (settings.username, settings.password.reveal())
    if settings.api_key is not None:
        options["api_key"] = settings.api_key.reveal()
    if settings.url.reveal().startswith("https:"):
        options["ssl_context"] = _ssl_context(settings)
        if settings.tls is not None and not settings.tls.verify_hostname:
            options["node_class"] = _AnyNameNode
    if raw:
        options["serializer"] = RawJson()
    return Elasticsearch(
        _with_port(settings.url.reveal()),
        request_timeout=REQUEST_SECONDS,
        max_retries=0,
        retry_on_timeout=False,
        **options,
    )


def _with_port(url: str) -> str:
    parts = urlsplit(url)
    if parts.port is not None:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.netloc}:{_PORTS[parts.scheme]}"))


def _ssl_context(settings: Settings) -> ssl.SSLContext:
    tls = settings.tls
    try:
        context = ssl.create_default_context(cafile=str(tls.ca) if tls and tls.ca else None)
        if tls is not None and tls.cert is not None:
            password = tls.key_password.reveal() if tls.key_password else None
            context.load_cert_chain(str(tls.cert), str(tls.key), password)
    except OSError as error:
        raise RefusedError(f"A TLS file of the store cannot be read: {error.strerror or error}.") from None
    if tls is not None:
        context.check_hostname = tls.verify_hostname
    return context


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise what the client raises as one of our errors; a 404 means that what we wrote to is gone."""
    try:
        yield
    except TransportError as error:
        raise transport_error(error) from error
    except ApiError as error:
        raise api_error(error) from error


def transport_error(error: TransportError) -> TailraceError:
    """Nothing came back: wrong certificates are for a person, the rest passes."""
    if isinstance(error, TlsError):
        return RefusedError(
            f"Elasticsearch's certificate was not accepted: {redact(str(error.message))}.",
            remedy="Check the store's url and [stores.NAME.tls].",
        )
    return TransientError(f"Elasticsearch does not answer: {redact(str(error.message))}.")


def api_error(error: ApiError) -> TailraceError:
    return problem(error.status_code, error_type(error.body))


def problem(status: int, kind: str) -> TailraceError:
    """What to do about an answer, by its status and the error's type; the server's own words may quote rows."""
    if 300 <= status < 400:
        return RefusedError(
            f"Elasticsearch's address answers with a redirect (status {status}), which is not followed.",
            remedy="Set the store's url to the address of the server itself.",
        )
    if status == 404:
        return PositionLostError(f"What Elasticsearch is asked for is not there ({kind}).")
    if kind == "invalid_alias_name_exception":
        return RefusedError(
            "Elasticsearch has an index under a name that must be an alias.",
            remedy="Remove that index (it has a table's name without -gN), or give the store another `prefix`.",
        )
    if status in (401, 403) and kind != "cluster_block_exception":
        return RefusedError(
            f"Elasticsearch denies this (status {status}, {kind}).",
            remedy="Give the store's user or API key the privileges in docs/reference/stores.md.",
        )
    if status in (403, 408, 429) or status >= 500:
        return TransientError(f"Elasticsearch cannot do this now (status {status}, {kind}).")
    return RefusedError(f"Elasticsearch refuses this (status {status}, {kind}).")


def error_type(body: object) -> str:
    if isinstance(body, bytes):
        try:
            body = msgspec.json.decode(body)
        except msgspec.DecodeError:
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else "no reason given"

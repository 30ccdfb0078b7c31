"""Opens the Elasticsearch client from the config, and translates its errors.

The results are `TransientError`, `RefusedError`, and `PositionLostError` for an index that is gone.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from elastic_transport import TlsError, TransportError
from elasticsearch import ApiError
from elasticsearch.serializer import JsonSerializer

from cdc.config.stores import ElasticsearchConfig, OpenSearchConfig
from cdc.config.stores import SearchConfig as Settings
from cdc.errors import RefusedError, TailraceError, TransientError
from cdc.secrets import redact
from cdc.stores.contract import PositionLostError
from sinks.elasticsearch.clients import OpenSearchClient, SearchClient

REQUEST_SECONDS: Final = 60
_PORTS: Final = {"http": 80, "https": 443}


class RawJson(JsonSerializer):
    """Returns response bodies as bytes. Callers that read rows decode them, so that no number changes its spelling."""

    def loads(self, data: bytes) -> Any:
        return data if isinstance(data, bytes) else bytes(data)


def open_elasticsearch(settings: Settings, *, raw: bool = False) -> SearchClient:
    """Return a client, which connects on first use. It returns response bodies as bytes if `raw`.

    The client retries nothing by itself. Callers decide which requests they may repeat.
    """
    client = OpenSearchClient if isinstance(settings, OpenSearchConfig) else SearchClient
    options: dict[str, Any] = {"node_class": client.node}
    if settings.username is not None and settings.password is not None:
        options["basic_auth"] = (settings.username, settings.password.reveal())
    if isinstance(settings, ElasticsearchConfig) and settings.api_key is not None:
        options["api_key"] = settings.api_key.reveal()
    if settings.url.reveal().startswith("https:"):
        options["ssl_context"] = _ssl_context(settings)
        if settings.tls is not None and not settings.tls.verify_hostname:
            options["node_class"] = client.any_name_node
    if raw:
        options["serializer"] = RawJson()
    return client(
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
        raise RefusedError(f"Cannot read a TLS file of the store: {error.strerror or error}.") from None
    if tls is not None:
        context.check_hostname = tls.verify_hostname
    return context


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the client's errors of the `with` block as Tailrace errors. A 404 becomes PositionLostError."""
    try:
        yield
    except TransportError as error:
        raise transport_error(error) from error
    except ApiError as error:
        raise api_error(error) from error


def transport_error(error: TransportError) -> TailraceError:
    """Return the error for a request without a response: refused for wrong certificates, otherwise transient."""
    if isinstance(error, TlsError):
        return RefusedError(
            f"The search server's certificate was not accepted: {redact(str(error.message))}.",
            remedy="Check the store's url and [stores.NAME.tls].",
        )
    return TransientError(f"The search server does not answer: {redact(str(error.message))}.")


def api_error(error: ApiError) -> TailraceError:
    """Return the Tailrace error for an error response."""
    return problem(error.status_code, error_type(error.body))


def problem(status: int, kind: str) -> TailraceError:
    """Return the Tailrace error for a status and an error type. Omits the server's text, because it may quote rows."""
    if 300 <= status < 400:
        return RefusedError(
            f"The search server's address answers with a redirect (status {status}). Tailrace does not follow them.",
            remedy="Set the store's url to the address of the server itself.",
        )
    if status == 404:
        return PositionLostError(f"The search server does not have the requested index, alias or document ({kind}).")
    if kind == "invalid_alias_name_exception":
        return RefusedError(
            "The search server has an index under a name that must be an alias.",
            remedy="Remove that index (it has a table's name without -gN), or set a different `prefix` for the store.",
        )
    if status in (401, 403) and kind != "cluster_block_exception":
        return RefusedError(
            f"The search server denies access (status {status}, {kind}).",
            remedy="Grant the store's user or API key the privileges listed in docs/reference/stores.md.",
        )
    if status in (403, 408, 429) or status >= 500:
        return TransientError(f"The search server cannot process the request now (status {status}, {kind}).")
    return RefusedError(f"The search server rejects the request (status {status}, {kind}).")


def error_type(body: object) -> str:
    """Return the type of the error in a response body, such as `index_not_found_exception`."""
    if isinstance(body, bytes):
        try:
            body = msgspec.json.decode(body)
        except msgspec.DecodeError:
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else "no reason given"

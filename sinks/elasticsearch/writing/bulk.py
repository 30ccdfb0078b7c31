"""Bulk requests: splits documents by size, retries while the server is busy, and handles each document's result.

A version conflict means that the index holds a newer version, so the document counts as written. If the server is busy
(429, or 5xx for single documents), `send_bulk` retries those documents for a limited time. Then it raises
TransientError, and the caller repeats the batch. It returns only documents that the server can never accept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch

from cdc.backoff import Backoff
from cdc.errors import RefusedError, TransientError
from sinks.elasticsearch.client import api_error, problem, transport_error

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 60.0
_WANTED: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
_FIELD = re.compile(r"failed to parse field \[(.+?)\] of type \[(\w+)\]")
_SHARD_IS_FULL: Final = "Number of documents in the"
_TERM = re.compile(r'immense term in field="([^"]+)"')


class BulkItem(NamedTuple):
    """One document or delete of a bulk request."""

    lines: bytes
    #: The caller's own identifier of the document.
    what: Any


class BulkRefusal(NamedTuple):
    """A document that the server can never accept. `reason` contains no value of the document."""

    what: Any
    reason: str


class BulkError(msgspec.Struct):
    """The error of one document in a bulk response."""

    type: str = "unknown"
    reason: str | None = None
    caused_by: dict[str, Any] | None = None


class _Outcome(msgspec.Struct):
    status: int
    error: BulkError | None = None


class _Answer(msgspec.Struct):
    errors: bool = False
    items: list[dict[str, _Outcome]] = []


_decode = msgspec.json.Decoder(_Answer).decode


def requests(items: Iterable[BulkItem], limit_bytes: int) -> Iterator[list[BulkItem]]:
    """Yield the items in portions of at most `limit_bytes`. A larger item gets a portion of its own."""
    portion: list[BulkItem] = []
    size = 0
    for item in items:
        length = len(item.lines)
        if portion and size + length > limit_bytes:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += length
    if portion:
        yield portion


def send_bulk(client: Elasticsearch, target: str, portion: Sequence[BulkItem]) -> list[BulkRefusal]:
    """Write all items, and return those that the server can never accept.

    `client` must return raw bytes (`open_elasticsearch(raw=True)`). `target` is a writer alias.
    """
    refused: list[BulkRefusal] = []
    waiting: Sequence[BulkItem] = portion
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        waiting = _attempt(client, target, waiting, refused)
        if not waiting:
            return refused
        pause_seconds = backoff.next_delay()
        if time.monotonic() + pause_seconds > give_up_at:
            raise TransientError(
                f"The search server is too busy: {len(waiting)} documents are not written to {target}."
            )
        time.sleep(pause_seconds)


def _attempt(
    client: Elasticsearch, target: str, items: Sequence[BulkItem], refused: list[BulkRefusal]
) -> Sequence[BulkItem]:
    """Send one request, and return the items that must be retried. Appends refused items to `refused`."""
    try:
        body = client.bulk(
            index=target,
            operations=b"".join([item.lines for item in items]),  # type: ignore[arg-type]  # bytes go as they are
            require_alias=True,
            filter_path=_WANTED,
        ).body
    except ApiError as error:
        if error.status_code == 413:
            return _too_large(client, target, items, refused)
        if error.status_code == 429:
            return items
        raise api_error(error) from error
    except TransportError as error:
        raise transport_error(error) from error
    answer = _decode(body)
    return _sort_out(answer, items, refused) if answer.errors else ()


def _too_large(
    client: Elasticsearch, target: str, items: Sequence[BulkItem], refused: list[BulkRefusal]
) -> Sequence[BulkItem]:
    """Halve a request that exceeds the server's size limit, until a single document that is too large is left."""
    if len(items) == 1:
        refused.append(BulkRefusal(items[0].what, "larger than the server accepts (http.max_content_length)"))
        return ()
    middle = len(items) // 2
    return [*_attempt(client, target, items[:middle], refused), *_attempt(client, target, items[middle:], refused)]


def _sort_out(answer: _Answer, items: Sequence[BulkItem], refused: list[BulkRefusal]) -> list[BulkItem]:
    again: list[BulkItem] = []
    for item, outcomes in zip(items, answer.items, strict=True):
        (outcome,) = outcomes.values()
        error = outcome.error
        if error is None or outcome.status == 409:
            continue
        if outcome.status == 429 or outcome.status >= 500:
            again.append(item)
        elif outcome.status == 400 and _SHARD_IS_FULL in (error.reason or ""):
            raise RefusedError(
                "A shard has reached Lucene's limit of documents.", remedy="Raise `shards`, and bootstrap the store."
            )
        elif outcome.status in (400, 413):
            refused.append(BulkRefusal(item.what, reason_of(error)))
        else:
            raise problem(outcome.status, error.type)
    return again


def reason_of(error: BulkError) -> str:
    """Return the field and the type of an error. Omits the server's full text, because it quotes values."""
    texts = [error.reason or "", str((error.caused_by or {}).get("reason") or "")]
    for text in texts:
        field = _FIELD.search(text)
        if field is not None:
            return f"field {field[1]} of type {field[2]} cannot hold the value ({error.type})"
        term = _TERM.search(text)
        if term is not None:
            return f"field {term[1]} has a value too long for one term ({error.type})"
    return f"not a document that the search server accepts ({error.type})"

"""Reads a whole index of any size in pages, at one point in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from elasticsearch import Elasticsearch

from sinks.elasticsearch.client import translated_errors

_KEEP_ALIVE: Final = "5m"


class Hit(msgspec.Struct):
    """One document of a search response."""

    id: str = msgspec.field(name="_id")
    sort: list[Any] = []
    source: msgspec.Raw = msgspec.field(name="_source", default_factory=msgspec.Raw)
    seq_no: int = msgspec.field(name="_seq_no", default=-1)
    primary_term: int = msgspec.field(name="_primary_term", default=-1)


class _Hits(msgspec.Struct):
    hits: list[Hit] = []


class _Page(msgspec.Struct):
    hits: _Hits
    pit_id: str
    timed_out: bool = False


class _Opened(msgspec.Struct):
    id: str


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_opened = msgspec.json.Decoder(_Opened).decode


def pages(
    client: Elasticsearch, index: str, query: dict[str, Any], *, size: int, with_source: bool
) -> Iterator[list[Hit]]:
    """Yield all matching documents at the time of the call, including the most recent writes.

    `client` must return raw bytes (`open_elasticsearch(raw=True)`).
    """
    with translated_errors():
        client.indices.refresh(index=index)
        point = _decode_opened(client.open_point_in_time(index=index, keep_alive=_KEEP_ALIVE).body).id
    try:
        after: list[Any] | None = None
        while True:
            with translated_errors():
                body = client.search(
                    pit={"id": point, "keep_alive": _KEEP_ALIVE},
                    query=query,
                    sort=["_shard_doc"],
                    search_after=after,
                    size=size,
                    source=with_source,
                    seq_no_primary_term=True,
                    track_total_hits=False,
                    allow_partial_search_results=False,
                ).body
            page = _decode_page(body)
            point = page.pit_id
            if not page.hits.hits:
                return
            yield page.hits.hits
            after = page.hits.hits[-1].sort
    finally:
        client.options(ignore_status=404).close_point_in_time(id=point)

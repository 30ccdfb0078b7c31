"""Reads a whole index of any size in pages, at one point in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from sinks.elasticsearch.client import translated_errors
from sinks.elasticsearch.clients import SearchClient

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
    timed_out: bool = False
    pit_id: str = ""


_decode_page = msgspec.json.Decoder(_Page).decode


def pages(
    client: SearchClient, index: str, query: dict[str, Any], *, size: int, with_source: bool
) -> Iterator[list[Hit]]:
    """Yield all matching documents at the time of the call, including the most recent writes.

    `client` must return raw bytes (`open_elasticsearch(raw=True)`).
    """
    with translated_errors():
        client.indices.refresh(index=index)
        points = client.open_points(index, _KEEP_ALIVE)
    try:
        for number in range(len(points)):
            yield from _pages_of(client, points, number, query, size=size, with_source=with_source)
    finally:
        client.close_points(points)


def _pages_of(
    client: SearchClient, points: list[str], number: int, query: dict[str, Any], *, size: int, with_source: bool
) -> Iterator[list[Hit]]:
    """Yield the pages of one point in time. The server may change its id, and then only the new one is valid."""
    after: list[Any] | None = None
    while True:
        with translated_errors():
            body = client.search(
                pit={"id": points[number], "keep_alive": _KEEP_ALIVE},
                query=query,
                sort=[client.point_order],
                search_after=after,
                size=size,
                source=with_source,
                seq_no_primary_term=True,
                track_total_hits=False,
                allow_partial_search_results=False,
            ).body
        page = _decode_page(body)
        points[number] = page.pit_id or points[number]
        if not page.hits.hits:
            return
        yield page.hits.hits
        after = page.hits.hits[-1].sort

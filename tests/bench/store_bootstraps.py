"""Bootstraps of both stores from a small and a large topic, each against what the store takes from anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from elasticsearch import Elasticsearch

from cdc.stores.contract import TableSchema
from tests.bench.capture import say
from tests.bench.store_limits import BULK_SIZES, CLIENTS, FLUSH_SECONDS, Sent, fill_cache, fill_search
from tests.bench.store_pipeline import CACHE, SEARCH, STORES, Addresses, BenchPipeline, Built
from tests.bench.store_source import StoreSource

ROWS: Final = {"small": 100_000, "large": 2_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A table with its own pipeline; both have its name."""

    name: str
    rows: int
    pipeline: BenchPipeline

    @property
    def table(self) -> TableSchema:
        """Without its columns: none of them has a name that a store would change."""
        return TableSchema("public", self.name, self.pipeline.topic(self.name), ("id",), ())


class Bootstraps:
    def __init__(self, folder: Path, addresses: Addresses, source: StoreSource, scale: float) -> None:
        self._folder = folder
        self._addresses = addresses
        self._source = source
        self._scale = scale
        self._built: dict[str, dict[str, Built]] = {store: {} for store in STORES}
        self._limits: dict[str, dict[str, Sent]] = {store: {} for store in STORES}
        self._fastest: dict[str, int] = {}

    def run(self) -> dict[str, object]:
        for name, rows in ROWS.items():
            part = self._prepare(name, max(1_000, int(rows * self._scale)))
            for store in STORES:
                self._measure(store, part)
        return self._figures()

    def _prepare(self, name: str, rows: int) -> Part:
        say(f"a topic of {rows} rows: {name}")
        self._source.create(name)
        self._source.fill(name, rows)
        pipeline = BenchPipeline(self._folder, name, [name], self._addresses)
        pipeline.copy()
        return Part(name=name, rows=rows, pipeline=pipeline)

    def _measure(self, store: str, part: Part) -> None:
        """Both into a store that has nothing else, and leave nothing behind."""
        self._empty()
        built = part.pipeline.bootstrap(store)
        if built.rows != part.rows:
            raise RuntimeError(f"the bootstrap of {store} loaded {built.rows} of {part.rows} rows")
        self._built[store][part.name] = built
        say(
            f"  {store:<6} bootstrap {built.rate:>9,.0f} rows/s ({built.load_seconds:.1f} s; before it"
            f" {built.start_seconds:.1f} s, after it {built.finish_seconds:.1f} s)"
        )
        fill = self._filling(store, part)
        self._empty()
        limit = self._fill(store, part, fill)
        self._limits[store][part.name] = limit
        say(f"  {store:<6} limit     {limit.rate:>9,.0f} rows/s ({limit.seconds:.1f} s)")

    def _filling(self, store: str, part: Part) -> Callable[[int], Sent]:
        """Takes what is tried: documents per request, or clients."""
        addresses = self._addresses
        if store == CACHE:
            return lambda clients: fill_cache(addresses.redis, part.table, addresses.kafka, clients)
        with Elasticsearch(addresses.elasticsearch) as client:
            found = client.indices.get_mapping(index=part.table.topic).body
        mappings: dict[str, Any] = next(iter(found.values()))["mappings"]
        return lambda size: fill_search(addresses.elasticsearch, part.table, mappings, addresses.kafka, size)

    def _fill(self, store: str, part: Part, fill: Callable[[int], Sent]) -> Sent:
        tried: dict[int, Sent] = {}
        candidates = BULK_SIZES if store == SEARCH else CLIENTS
        for each in [self._fastest[store]] if store in self._fastest else candidates:
            tried[each] = fill(each)
            if tried[each].rows != part.rows:
                raise RuntimeError(f"the limit of {store} was taken with {tried[each].rows} of {part.rows} rows")
        self._fastest[store] = max(tried, key=lambda each: tried[each].rate)
        return tried[self._fastest[store]]

    def _empty(self) -> None:
        with redis.Redis.from_url(self._addresses.redis, socket_timeout=FLUSH_SECONDS) as client:
            client.flushall()
        with Elasticsearch(self._addresses.elasticsearch, request_timeout=120) as search:
            for name in ROWS:
                for index in search.indices.get(index=f"{name}.*", features="aliases").body:
                    search.indices.delete(index=index)

    def _figures(self) -> dict[str, object]:
        figures: dict[str, object] = {
            f"{store}_ratio_limit": round(self._built[store]["large"].rate / self._limits[store]["large"].rate, 3)
            for store in STORES
        }
        figures["bootstrap_rates"] = {
            store: {name: round(built.rate) for name, built in parts.items()} for store, parts in self._built.items()
        }
        figures["limit_rates"] = {
            store: {name: round(sent.rate) for name, sent in parts.items()} for store, parts in self._limits.items()
        }
        figures["bootstrap_seconds"] = {
            store: {name: _seconds(built) for name, built in parts.items()} for store, parts in self._built.items()
        }
        figures["cost_per_row_large_to_small"] = {
            store: round(parts["small"].rate / parts["large"].rate, 3) for store, parts in self._built.items()
        }
        figures["cost_per_row_large_to_small_limit"] = {
            store: round(parts["small"].rate / parts["large"].rate, 3) for store, parts in self._limits.items()
        }
        figures["fastest_limit"] = {"search_bulk_size": self._fastest[SEARCH], "cache_clients": self._fastest[CACHE]}
        return figures


def _seconds(built: Built) -> dict[str, float]:
    return {
        "rows": built.rows,
        "start": round(built.start_seconds, 2),
        "load": round(built.load_seconds, 2),
        "finish": round(built.finish_seconds, 2),
    }

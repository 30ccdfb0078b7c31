"""The stores as an application reads them: how many rows there are, and when a row was found.

Search is asked by `_search` and `_count` on the alias (a GET by id would also find what no search sees yet), the cache
by HGET of the row's key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import redis
from elasticsearch import Elasticsearch

from tests.bench.store_pipeline import CACHE, SEARCH, BenchPipeline

_POLL_SECONDS: Final = 0.02
_REST: Final = 4  # times as long as a look took: a slow server is not made slower by being asked
_COUNT_SECONDS: Final = 0.2
_SILENCE_SECONDS: Final = 180.0


class StoreReader(Protocol):
    def count(self) -> int:
        """Rows that readers see, perhaps with some things that are none but stay as they are."""

    def found(self, ids: list[int]) -> list[int]:
        """Those of the ids that a reader finds now."""

    def close(self) -> None: ...


class SearchReader:
    def __init__(self, url: str, alias: str) -> None:
        self._client = Elasticsearch(url)
        self._alias = alias

    def count(self) -> int:
        answer = self._client.options(ignore_status=404).count(index=self._alias).body
        return int(answer.get("count", 0))

    def found(self, ids: list[int]) -> list[int]:
        query = {"ids": {"values": [str(each) for each in ids]}}
        hits: Any = self._client.search(
            index=self._alias,
            query=query,
            size=len(ids),
            source=False,
            ignore_unavailable=True,
            filter_path="hits.hits._id",
        ).body
        return [int(hit["_id"]) for hit in hits.get("hits", {}).get("hits", ())]

    def close(self) -> None:
        self._client.close()


class CacheReader:
    def __init__(self, url: str, prefix: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._prefix = prefix

    def count(self) -> int:
        """All keys of the server; what is not a row does not change while rows are counted."""
        size: Any = self._client.dbsize()
        return int(size)

    def found(self, ids: list[int]) -> list[int]:
        pipeline = self._client.pipeline(transaction=False)
        for each in ids:
            pipeline.hget(f"{self._prefix}{each}", "row")
        return [each for each, row in zip(ids, pipeline.execute(), strict=True) if row is not None]

    def close(self) -> None:
        self._client.close()


def open_reader(store: str, pipeline: BenchPipeline, table: str) -> StoreReader:
    if store == SEARCH:
        return SearchReader(pipeline.addresses.elasticsearch, f"{pipeline.name}.public.{table}")
    assert store == CACHE
    return CacheReader(pipeline.addresses.redis, f"{pipeline.name}:public.{table}:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """`rows` that came after the first look that saw any, in `seconds`; `seconds_from_start` for all of them."""

    rows: int
    seconds: float
    seconds_from_start: float

    @property
    def rate(self) -> float | None:
        return self.rows / self.seconds if self.rows else None


def drain(reader: StoreReader, before: int, rows: int, check: Callable[[], None]) -> Drained:
    """Until readers see `rows` more than `before`; call it when the sync is started."""
    began = heard = time.monotonic()
    first: tuple[float, int] | None = None
    last = before
    while True:
        count, now = reader.count(), time.monotonic()
        if count > before and first is None:
            first = now, count
        if first is not None and count >= before + rows:
            return Drained(rows=count - first[1], seconds=now - first[0], seconds_from_start=now - began)
        if count != last:
            last, heard = count, now
        check()
        if now - heard > _SILENCE_SECONDS:
            raise RuntimeError(f"{count - before} of {rows} rows arrived, then nothing")
        time.sleep(_COUNT_SECONDS)


class Watcher(threading.Thread):
    """Asks for each id from the moment it is due until it is found. `arrived_us` is complete when the thread ends.

    `due` gives the monotonic time of an id.
    """

    def __init__(self, reader: StoreReader, ids: list[int], due: Callable[[int], float]) -> None:
        super().__init__(daemon=True)
        self._reader = reader
        self._pending = ids
        self._due = due
        self.arrived_us: dict[int, int] = {}
        self.error: Exception | None = None
        self._told_to_stop = threading.Event()

    def stop(self) -> None:
        self._told_to_stop.set()
        self.join()

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.error = error

    def _watch(self) -> None:
        heard = time.monotonic()
        while self._pending and not self._told_to_stop.is_set():
            now = time.monotonic()
            asked = [each for each in self._pending if self._due(each) <= now]
            found = set(self._reader.found(asked)) if asked else set()
            seen_us = time.time_ns() // 1000
            self.arrived_us.update(dict.fromkeys(found, seen_us))
            if found:
                self._pending = [each for each in self._pending if each not in found]
                heard = now
            if asked and now - heard > _SILENCE_SECONDS:
                raise RuntimeError(f"{len(self.arrived_us)} rows were found, then none")
            time.sleep(max(_POLL_SECONDS, _REST * (time.monotonic() - now)))

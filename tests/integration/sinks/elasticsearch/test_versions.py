"""Elasticsearch compares one number as the version: large transactions, late requests, indices of release 0.1.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import msgspec
import pytest
from elasticsearch import Elasticsearch

from cdc.lsn import Version
from cdc.stores.contract import Generation, Position, Store, TableSchema
from tests.harness.network.proxy import Proxy
from tests.harness.stores.opened_stores import apply, change, rows, store_of, table, truncate


@pytest.fixture
def store(elasticsearch_url: str, prefix: str) -> Iterator[Store]:
    opened = store_of("elasticsearch", elasticsearch_url, prefix)
    yield opened
    opened.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: Store, orders: TableSchema) -> Generation:
    return store.create_generation([orders])


@pytest.mark.parametrize("late_seq", [4_095, 30_000, 2_000_000])
def test_a_delayed_request_of_the_same_huge_transaction_is_ignored(
    late_seq: int,
    elasticsearch_url: str,
    store: Store,
    generation: Generation,
    orders: TableSchema,
    prefix: str,
    start_proxy: Callable[[str, int], Proxy],
) -> None:
    """A delayed request with an earlier change of the same transaction does not replace the later one."""
    address = urlsplit(elasticsearch_url)
    proxy = start_proxy(address.hostname or "", address.port or 0)
    early, late = Version(800, late_seq), Version(800, late_seq + 1 + late_seq // 1000)
    stuck = store_of("elasticsearch", f"http://{proxy.address}", prefix)
    writer = stuck.writer_factory(generation)()
    writer.apply(orders, [change(99, 1)])
    with ThreadPoolExecutor(1) as pool:
        proxy.blackhole()
        landing = pool.submit(writer.apply, orders, [change(1, early, {"note": "first"}), change(2, early)])
        apply(store, generation, orders, [change(1, late, {"note": "second"}), change(2, late, gone=True)])
        proxy.restore()
        assert landing.result(timeout=60) == []
    writer.close()
    stuck.close()
    assert rows(store, generation, orders) == {"1": {"id": 1, "note": "second"}, "99": {"id": 99}}


@pytest.fixture
def of_0_1_0(store: Store, generation: Generation, orders: TableSchema, elasticsearch_url: str, prefix: str) -> Store:
    """A generation of release 0.1.0: row 1 at position 800, a TRUNCATE at 400, all applied up to 800."""
    own = f"{prefix}.__tailrace-g1"
    position = Position(version=Version(800, 5), lsn=800)
    with Elasticsearch(elasticsearch_url) as client:
        meta = client.indices.get_mapping(index=own)[own]["mappings"]["_meta"]["_tailrace"]
        known = {name: meta[name] for name in ("store", "created_ms", "state", "tables")}
        client.indices.put_mapping(index=own, meta={"_tailrace": {**known, "format": 1}})
        client.index(index=own, id="position", document=msgspec.to_builtins(position))
    truncate(store, generation, orders, Version(400, 1))
    apply(store, generation, orders, [change(1, 100, {"note": "100"}), change(2, 100, gone=True)])
    return store


def test_a_generation_of_0_1_0_stays_right(
    of_0_1_0: Store, generation: Generation, orders: TableSchema, elasticsearch_url: str, prefix: str
) -> None:
    """In a generation of 0.1.0, replays of older changes and its late requests lose, and later changes win.

    Release 0.1.0 refuses to continue with it, by its format.
    """
    store = of_0_1_0
    with closing(store.writer_factory(generation)()) as old_writer:
        store.take(generation, "new")
        apply(store, generation, orders, [change(1, 99, {"note": "99"}), change(2, 99), change(3, 101)])
        truncate(store, generation, orders, Version(392, 1))
        assert rows(store, generation, orders) == {"1": {"id": 1, "note": "100"}, "3": {"id": 3}}
        apply(store, generation, orders, [change(1, 101, {"note": "101"}), change(2, 101)])
        old_writer.apply(orders, [change(1, 100, {"note": "late"}), change(2, 100, gone=True), change(3, 90)])
    assert rows(store, generation, orders) == {"1": {"id": 1, "note": "101"}, "2": {"id": 2}, "3": {"id": 3}}
    own = f"{prefix}.__tailrace-g1"
    with Elasticsearch(elasticsearch_url) as client:
        assert client.get(index=own, id=f"truncated:{orders.topic}")["_source"]["version"] == str(Version(400, 1))
        assert client.indices.get_mapping(index=own)[own]["mappings"]["_meta"]["_tailrace"]["format"] == 2

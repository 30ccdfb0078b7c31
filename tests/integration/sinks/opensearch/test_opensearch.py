"""What is different in OpenSearch: points in time, and the checks. The contract's tests cover the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cdc.lsn import Version
from cdc.stores.contract import Generation, RowStore, TableSchema
from cdc.stores.scan import Forced
from sinks.opensearch.store import OpenSearchScan
from tests.harness.stores.opened_stores import apply, change, rows, settings_of, store_of, table, truncate

ROWS = 6_000


@pytest.fixture
def store(opensearch_url: str, prefix: str) -> Iterator[RowStore]:
    with closing(store_of("opensearch", opensearch_url, prefix, settings={"shards": 3})) as opened:
        yield opened


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: RowStore, orders: TableSchema) -> Generation:
    generation = store.create_generation([orders])
    apply(store, generation, orders, [change(key, 5) for key in range(ROWS)])
    return generation


def test_every_row_of_every_shard_is_read_once(store: RowStore, generation: Generation, orders: TableSchema) -> None:
    """Pages and slices show each row once, although no sort order is unique over shards."""
    assert sorted(each.id for each in store.contents(generation, orders)) == sorted(map(str, range(ROWS)))


@pytest.mark.parametrize("count", [1, 4])
def test_slices_share_out_every_row(
    count: int, store: RowStore, generation: Generation, orders: TableSchema, opensearch_url: str, prefix: str
) -> None:
    """The audit's slices together hold each row once."""
    settings = settings_of("opensearch", opensearch_url, {"shards": 3})
    with closing(OpenSearchScan("store", settings, prefix, generation)) as scan, scan.slices(orders, count) as slices:
        found = [row.id for each in slices for page in each() for row in page]
    assert len(slices) == count
    assert sorted(found) == sorted(map(str, range(ROWS)))


def test_the_scan_reads_and_forces_rows(
    store: RowStore, generation: Generation, orders: TableSchema, opensearch_url: str, prefix: str
) -> None:
    """A row with a version that no change will ever have is replaced."""
    apply(store, generation, orders, [change(7, Version(1 << 40, 1), {"note": "wrong"})])
    settings = settings_of("opensearch", opensearch_url, {"shards": 3})
    with closing(OpenSearchScan("store", settings, prefix, generation)) as scan:
        held = scan.rows(orders, ["7", "none"])["7"]
        scan.force(orders, [Forced(held, change(7, 6, {"note": "right"}))])
        assert scan.rows(orders, ["7"])["7"].version == change(7, 6).version
        assert 0 < len(scan.sample(orders, 5)) <= 5
    assert rows(store, generation, orders)["7"] == {"id": 7, "note": "right"}


def test_a_truncate_reaches_every_shard(store: RowStore, generation: Generation, orders: TableSchema) -> None:
    """Also when the rows fill many pages of each shard."""
    assert truncate(store, generation, orders, Version(48, 1)) == ROWS
    assert store.count(generation, orders) == 0


def test_the_check_names_the_version(store: RowStore) -> None:
    """It compares the version with OpenSearch's own."""
    found = [each for each in store.check() if each.what.startswith("version")]
    assert [each.level for each in found] == ["ok"]

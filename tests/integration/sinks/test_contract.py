"""Our kinds of stores pass the contract's tests on the real servers; and what only stores on a server promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.config import IcebergConfig
from cdc.config.settings import Location
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.stores.contract import Generation, RowStore, TableSchema
from cdc.stores.registry import open_store as open_configured
from cdc.stores.testing.row_store_contract import RowStoreContract
from cdc.stores.testing.store_contract import SOME, OpenStore, StoreContract
from tests.harness.network.proxy import Proxy
from tests.harness.stores.opened_stores import KINDS, apply, change, rows, store_of, table, truncate


@pytest.fixture
def address(kind: str, elasticsearch_url: str, opensearch_url: str, redis_url: str) -> str:
    return {"elasticsearch": elasticsearch_url, "opensearch": opensearch_url, "redis": redis_url}[kind]


@pytest.mark.parametrize("kind", [*KINDS, "opensearch"])
class TestRowStores(RowStoreContract):
    """The kinds that Tailrace writes row by row."""

    @pytest.fixture
    def open_store(self, kind: str, address: str, prefix: str) -> OpenStore:
        return lambda: store_of(kind, address, prefix)


class TestWarehouse(StoreContract):
    """Iceberg, whose tables Spark writes."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        settings = IcebergConfig(path=Location(str(tmp_path / "warehouse")))
        return lambda: open_configured("warehouse", settings, "shop")


@pytest.fixture
def store(kind: str, address: str, prefix: str) -> Iterator[RowStore]:
    opened = store_of(kind, address, prefix)
    yield opened
    opened.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: RowStore, orders: TableSchema) -> Generation:
    return store.create_generation([orders])


@pytest.mark.parametrize("kind", [*KINDS, "opensearch"])
def test_a_prefix_belongs_to_one_store(kind: str, address: str, prefix: str, generation: Generation) -> None:
    """A second store under the same prefix is refused with the remedy."""
    other = store_of(kind, address, prefix, name="other")
    with pytest.raises(RefusedError, match="belong"):
        other.create_generation([])
    other.close()
    elsewhere = store_of(kind, address, prefix, name="other", settings={"prefix": f"{prefix}-2"})
    made = elsewhere.create_generation([])
    assert elsewhere.list_generations() == [made]
    elsewhere.drop(made)
    elsewhere.close()


@pytest.mark.parametrize("kind", [*KINDS, "opensearch"])
def test_a_server_that_is_away_is_transient(kind: str, address: str, prefix: str, orders: TableSchema) -> None:
    """Every call on an unreachable server raises a transient error, and afterwards the interrupted batch is
    complete.
    """
    host, _, port = address.partition("://")[2].partition("/")[0].rpartition(":")
    with Proxy(host, int(port)) as proxy:
        store = store_of(kind, address.replace(f"{host}:{port}", proxy.address), prefix)
        generation = store.create_generation([orders])
        store.take(generation, "one")
        proxy.cut()
        for attempt in (
            lambda: apply(store, generation, orders, [change(1, 5)]),
            lambda: truncate(store, generation, orders, Version(8, 1)),
            lambda: store.save_position(generation, SOME),
            store.serving,
            store.check,
        ):
            with pytest.raises(TransientError):
                attempt()
        proxy.restore()
        apply(store, generation, orders, [change(1, 5)])
        assert store.save_position(generation, SOME) == store.position(generation)
        assert set(rows(store, generation, orders)) == {"1"}
        store.close()

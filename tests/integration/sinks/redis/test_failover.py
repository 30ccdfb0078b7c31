"""After a Redis failover during a batch, acknowledged rows may be lost, so the position is not advanced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.stores.contract import Generation, Position, PositionLostError, Store, TableSchema
from tests.harness.network.proxy import Proxy
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.opened_stores import apply, change, rows, store_of, table, truncate


class Pair:
    """A primary and its replica, and the address through which clients reach one of them."""

    def __init__(self, folder: Path, proxy: Callable[[str, int], Proxy]) -> None:
        for name in ("first", "second"):
            (folder / name).mkdir()
        self.first = OwnRedis(folder / "first", save="", repl_diskless_sync_delay="0")
        self.second = OwnRedis(folder / "second", save="", repl_diskless_sync_delay="0")
        self.proxy = proxy("127.0.0.1", self.first.port)
        self.url = f"redis://{self.proxy.address}/0"
        self.follow(self.second, self.first)

    def follow(self, replica: OwnRedis, primary: OwnRedis) -> None:
        """Wait until the replica has everything that the primary has."""
        with replica.client() as behind, primary.client() as ahead:
            behind.replicaof("127.0.0.1", str(primary.port))
            eventually(
                lambda: (
                    behind.info("replication")["master_link_status"] == "up"
                    and behind.info("replication")["master_repl_offset"]
                    == ahead.info("replication")["master_repl_offset"]
                ),
                60,
                "the replica to have everything",
            )

    def promote(self, replica: OwnRedis) -> None:
        with replica.client() as client:
            client.replicaof("NO", "ONE")

    def point_at(self, server: OwnRedis) -> None:
        """Route clients to this server from now on."""
        self.proxy.target = ("127.0.0.1", server.port)
        self.proxy.reset_connections()

    def close(self) -> None:
        self.first.close()
        self.second.close()


@pytest.fixture
def pair(tmp_path: Path, start_proxy: Callable[[str, int], Proxy]) -> Iterator[Pair]:
    with closing(Pair(tmp_path, start_proxy)) as made:
        yield made


@pytest.fixture
def store(pair: Pair, prefix: str) -> Iterator[Store]:
    opened = store_of("redis", pair.url, prefix)
    yield opened
    opened.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: Store, orders: TableSchema, pair: Pair) -> Generation:
    """A taken generation with a row and a position that the replica has as well."""
    generation = store.create_generation([orders])
    store.switch(generation)
    store.take(generation, "one")
    apply(store, generation, orders, [change(1, 5)])
    store.save_position(generation, Position(lsn=40))
    pair.follow(pair.second, pair.first)
    return generation


def _assert_done_again(store: Store, generation: Generation, orders: TableSchema) -> None:
    """The position is unchanged, and the batch succeeds when it is taken again."""
    with pytest.raises(PositionLostError):
        store.save_position(generation, Position(lsn=48))
    assert store.take(generation, "one").lsn == 40
    apply(store, generation, orders, [change(2, 6)])
    assert store.save_position(generation, Position(lsn=48)).lsn == 48
    assert set(rows(store, generation, orders)) == {"1", "2"}


def test_a_failover_there_and_back_in_one_batch(
    pair: Pair, store: Store, generation: Generation, orders: TableSchema
) -> None:
    """After a failover and back, the same process with the same position but without the rows is noticed."""
    pair.promote(pair.second)
    apply(store, generation, orders, [change(2, 6)])
    pair.follow(pair.first, pair.second)
    pair.promote(pair.first)
    assert set(rows(store, generation, orders)) == {"1"}, "the row that was acknowledged is lost"
    _assert_done_again(store, generation, orders)


def test_a_batch_that_went_to_the_other_server(
    pair: Pair, store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """When the address led to the other server for a time, rows and TRUNCATEs of the batch are missing, and it is
    repeated.
    """
    pair.promote(pair.second)
    pair.point_at(pair.second)
    for attempt in (
        lambda: apply(store, generation, orders, [change(2, 6)]),
        lambda: truncate(store, generation, orders, change(1, 6).version),
    ):
        with pytest.raises(PositionLostError):
            attempt()
    with closing(store_of("redis", pair.second.url, prefix)) as other:
        assert set(rows(other, generation, orders)) == {"1"}
    pair.point_at(pair.first)
    apply(store, generation, orders, [change(2, 6)])
    assert store.save_position(generation, Position(lsn=48)).lsn == 48
    assert set(rows(store, generation, orders)) == {"1", "2"}

"""A generation whose indices were restored or replaced loses its position; one that only moved keeps it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from cdc.errors import TransientError
from cdc.stores.contract import Generation, Position, PositionLostError, Store, TableSchema
from deploy.stack import Stack
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_elasticsearch import own_cluster
from tests.harness.stores.elasticsearch_snapshots import Snapshots
from tests.harness.stores.opened_stores import apply, change, store_of, table

#: What an operator does to the server; `Names` says which indices are there.
Deed = Callable[["Names"], None]


class Names:
    def __init__(self, client: Elasticsearch, snapshots: Snapshots, prefix: str) -> None:
        self.client = client
        self.snapshots = snapshots
        self.orders = f"{prefix}.public.orders-g1"
        self.own = f"{prefix}.__tailrace-g1"


@pytest.fixture
def store(elasticsearch_url: str, prefix: str) -> Iterator[Store]:
    opened = store_of("elasticsearch", elasticsearch_url, prefix)
    yield opened
    opened.close()


@pytest.fixture
def names(elasticsearch_url: str, prefix: str) -> Iterator[Names]:
    with Elasticsearch(elasticsearch_url, request_timeout=60) as client:
        snapshots = Snapshots(client, prefix)
        yield Names(client, snapshots, prefix)
        snapshots.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: Store, orders: TableSchema, names: Names) -> Generation:
    """A serving generation with one row and a position; snapshot `before` has no row, `after` has everything."""
    generation = store.create_generation([orders])
    store.switch(generation)
    store.take(generation, "one")
    names.snapshots.make("before", [names.orders])
    apply(store, generation, orders, [change(1, 5)])
    store.save_position(generation, Position(lsn=40))
    names.snapshots.make("after", [names.orders, names.own])
    return generation


def _restore_over_closed(names: Names) -> None:
    names.client.indices.close(index=names.orders)
    names.snapshots.restore("before", [names.orders])


def _restore_after_delete(names: Names) -> None:
    names.client.indices.delete(index=names.orders)
    names.snapshots.restore("before", [names.orders])


def _restore_everything(names: Names) -> None:
    """Restore the rows of one moment and the position of a later one, as a single snapshot may contain."""
    both = [names.orders, names.own]
    names.client.indices.delete(index=both)
    names.snapshots.restore("before", [names.orders])
    names.snapshots.restore("after", [names.own])


def _restore_the_position(names: Names) -> None:
    names.client.indices.close(index=names.own)
    names.snapshots.restore("after", [names.own])


def _make_again(names: Names) -> None:
    """Create the index again with the same settings, but empty."""
    index: dict[str, Any] = names.client.indices.get(index=names.orders)[names.orders]
    names.client.indices.delete(index=names.orders)
    names.client.indices.create(index=names.orders, mappings=index["mappings"], aliases=index["aliases"])


@pytest.mark.parametrize(
    ("deed", "index"),
    [
        (_restore_over_closed, "public.orders"),
        (_restore_after_delete, "public.orders"),
        (_restore_everything, "__tailrace"),
        (_restore_the_position, "__tailrace"),
        (_make_again, "public.orders"),
    ],
)
def test_a_position_does_not_outlive_its_indices(
    deed: Deed, index: str, store: Store, generation: Generation, names: Names, orders: TableSchema, prefix: str
) -> None:
    """After an index is restored or created again the position is invalid, with the index as the reason.

    No build continues it, and a new generation serves.
    """
    deed(names)
    assert store.position(generation) is None
    assert store.serving() is None
    for attempt in (lambda: store.take(generation, "one"), lambda: store.switch(generation)):
        with pytest.raises(PositionLostError, match=f"{prefix}.{index}-g1"):
            attempt()
    (warning,) = (each for each in store.check() if each.level == "warn")
    assert f"{prefix}.{index}-g1" in warning.what
    second = store.create_generation([orders])
    store.switch(second)
    assert store.serving() == second._replace(state="settled")
    assert not [each for each in store.check() if each.level == "warn"]


def test_a_restored_second_generation_is_not_served(
    store: Store, generation: Generation, names: Names, orders: TableSchema
) -> None:
    """A restore brings aliases back: with two generations neither counts as serving until the next switch."""
    second = store.create_generation([orders])
    store.switch(second)
    store.drop(generation)
    names.snapshots.restore("after", [names.orders, names.own])
    assert store.serving() is None
    assert store.position(second) is not None
    store.switch(second)
    assert store.serving() == second._replace(state="settled")


def test_a_closed_index_is_waited_for(store: Store, generation: Generation, names: Names) -> None:
    """A closed index is a transient error with the reason, and sync continues when it is open."""
    before = store.position(generation)
    for index in (names.orders, names.own):
        names.client.indices.close(index=index)
        for attempt in (store.serving, lambda: store.position(generation), lambda: store.take(generation, "one")):
            with pytest.raises(TransientError, match=f"{index} is closed") as raised:
                attempt()
            assert not isinstance(raised.value, PositionLostError)
        names.client.indices.open(index=index)
        assert store.position(generation) == before


def test_a_restart_and_other_settings_change_nothing(
    store: Store, generation: Generation, names: Names, orders: TableSchema, stack: Stack
) -> None:
    """After a restart, a merge and other settings the index is the same and the position is valid."""
    before = store.position(generation)
    stack.stop("elasticsearch")
    stack.start("elasticsearch")
    assert store.position(generation) == before
    names.client.indices.put_settings(index=names.orders, settings={"auto_expand_replicas": "0-all"})
    names.client.indices.forcemerge(index=names.orders, max_num_segments=1)
    names.client.indices.flush(index=names.orders)
    assert store.position(generation) == before
    store.take(generation, "two")
    apply(store, generation, orders, [change(2, 6)])
    assert store.save_position(generation, Position(lsn=48)) == store.position(generation)


def test_a_generation_of_an_older_tailrace_is_adopted(
    store: Store, generation: Generation, names: Names, orders: TableSchema, prefix: str
) -> None:
    """A generation that recorded only index names records their ids at the first `take`."""
    mappings = names.client.indices.get_mapping(index=names.own)[names.own]["mappings"]
    own = {name: value for name, value in mappings["_meta"]["_tailrace"].items() if name != "identities"}
    names.client.indices.put_mapping(index=names.own, meta={"_tailrace": own})
    assert store.position(generation) is not None
    store.take(generation, "one")
    late = table(prefix, name="late")
    store.ensure_table(generation, late)
    _restore_over_closed(names)
    assert store.position(generation) is None
    names.client.indices.delete(index=names.orders)
    with pytest.raises(PositionLostError):
        store.ensure_table(generation, orders)


@pytest.mark.slow
def test_a_promoted_replica_keeps_the_position_and_a_stale_primary_loses_it() -> None:
    """A promoted replica has every row and keeps the position; a stale primary forced by an operator loses it.

    Of three nodes, two hold the table. After both died and only the stale one is back, the store is unavailable until
    the operator decides.
    """
    folder = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
    folder.chmod(0o755)  # as root, the nodes run as another user
    with own_cluster(folder, 3) as (master, one, two):
        client = master.client
        store = store_of("elasticsearch", master.url, "own", settings={"replicas": 1})
        orders = table("own")
        index = "own.public.orders-g1"
        _allocate(client, master="node0", only="node1,node2")
        generation = store.create_generation([orders])
        store.switch(generation)
        eventually(lambda: client.cluster.health(index=index)["status"] == "green", 60, "the replica")
        store.take(generation, "one")
        apply(store, generation, orders, [change(1, 5)])
        saved = store.save_position(generation, Position(lsn=40))
        holders = {"node1": one, "node2": two}
        first = _primary(client, index)
        holders[first].kill()
        eventually(lambda: _position(store, generation) == saved, 120, "the replica to be the primary")
        apply(store, generation, orders, [change(2, 6)])
        assert store.save_position(generation, Position(lsn=48)) == store.position(generation)
        (second,) = holders.keys() - {first}
        holders[second].kill()
        holders[first].start()
        eventually(lambda: _nodes(client) == {"node0", first}, 120, "the old node to be back, and the other one gone")
        with pytest.raises(TransientError, match="is not available") as raised:
            store.position(generation)
        assert not isinstance(raised.value, PositionLostError)
        client.cluster.reroute(
            commands=[
                {
                    "allocate_stale_primary": {"index": index, "shard": 0, "node": first, "accept_data_loss": True},
                }
            ]
        )
        eventually(lambda: _is_lost(store, generation), 120, "the position to be lost")
        store.close()


def _allocate(client: Elasticsearch, *, master: str, only: str) -> None:
    """Put the position's index on the master alone, and the tables' on the other nodes."""
    client.indices.put_index_template(
        name="own",
        index_patterns=["own.__*"],
        template={"settings": {"index.routing.allocation.require._name": master}},
    )
    client.indices.put_index_template(
        name="tables",
        index_patterns=["own.public.*"],
        template={"settings": {"index.routing.allocation.include._name": only}},
    )


def _primary(client: Elasticsearch, index: str) -> str:
    """The node with the primary shard."""
    (found,) = (each for each in client.cat.shards(index=index, format="json") if each["prirep"] == "p")  # type: ignore[index]
    return str(found["node"])  # type: ignore[index]


def _nodes(client: Elasticsearch) -> set[str]:
    return {node["name"] for node in client.nodes.info(filter_path="nodes.*.name")["nodes"].values()}


def _position(store: Store, generation: Generation) -> Position | None:
    try:
        return store.position(generation)
    except TransientError:
        return None


def _is_lost(store: Store, generation: Generation) -> bool:
    try:
        return store.position(generation) is None
    except TransientError:
        return False

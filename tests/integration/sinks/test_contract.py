"""The contract of a store (cdc/stores/contract.py) on the real servers, rule by rule."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.stores.contract import (
    Change,
    Fit,
    Generation,
    Position,
    PositionLostError,
    SchemaColumn,
    Store,
    TableSchema,
    TakenOverError,
    TopicPosition,
)
from tests.harness.network.proxy import Proxy
from tests.harness.stores.opened_stores import DOCUMENTED, KINDS, apply, change, rows, store_of, table, truncate

SOME = Position(
    topics={"t.public.orders": TopicPosition("an-id", (3, 5))}, version=Version(80, 2), lsn=80, caught_up_ms=9
)


@pytest.fixture(params=[*KINDS, DOCUMENTED])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(kind: str, elasticsearch_url: str, redis_url: str, tmp_path: Path) -> str:
    return {"elasticsearch": elasticsearch_url, "redis": redis_url, DOCUMENTED: str(tmp_path / "store.db")}[kind]


@pytest.fixture
def store(kind: str, address: str, prefix: str) -> Iterator[Store]:
    opened = store_of(kind, address, prefix)
    yield opened
    opened.close()


@pytest.fixture
def orders(prefix: str) -> TableSchema:
    return table(prefix)


@pytest.fixture
def generation(store: Store, orders: TableSchema) -> Generation:
    return store.create_generation([orders])


def test_the_server_of_the_stack_is_good(store: Store) -> None:
    """`check` finds nothing wrong with a server that is set up as it should be."""
    found = store.check()
    assert found
    assert "fail" not in {each.level for each in found}  # a cluster is red while an index is being created


def test_rows_come_back_as_they_went_in(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A stored row has the event's bytes; a deleted row is not returned, but its version is kept."""
    one = change(1, 5, {"note": 'é " \\ \n 😀'})
    assert apply(store, generation, orders, [one, change(2, 6, gone=True)]) == []
    assert [(each.id, each.version) for each in store.contents(generation, orders)] == [("1", one.version)]
    assert rows(store, generation, orders) == {"1": json.loads(one.row or b"")}
    everything = {each.id: each for each in store.contents(generation, orders, tombstones=True)}
    assert everything["2"].version == Version(48, 1)
    assert everything["2"].row is None
    assert store.count(generation, orders) == 1


def test_a_writer_factory_works_in_another_process(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A writer factory can be sent to another process, and its writer works there."""
    writer = pickle.loads(pickle.dumps(store.writer_factory(generation)))()  # noqa: S301 - our own bytes
    assert writer.apply(orders, [change(1, 5)]) == []
    writer.close()
    assert set(rows(store, generation, orders)) == {"1"}


def test_an_older_version_never_wins(store: Store, generation: Generation, orders: TableSchema) -> None:
    """After v5, v4, a delete at v6 and v5 again, the row is absent."""
    for each in (change(1, 5), change(1, 4), change(1, 6, gone=True), change(1, 5)):
        apply(store, generation, orders, [each])
    assert rows(store, generation, orders) == {}


def test_the_same_version_again_is_harmless(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A batch that is repeated changes nothing."""
    batch = [change(1, 5, {"note": "a"}), change(2, 5, gone=True)]
    for _ in range(2):
        assert apply(store, generation, orders, batch) == []
    assert rows(store, generation, orders) == {"1": {"id": 1, "note": "a"}}


def test_a_row_comes_back_after_its_delete(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A row inserted again after its delete stays, without the tombstone's expiry."""
    for each in (change(1, 5), change(1, 6, gone=True), change(1, 7, {"note": "again"})):
        apply(store, generation, orders, [each])
    assert rows(store, generation, orders) == {"1": {"id": 1, "note": "again"}}


_runs = itertools.count(1)  # each example has keys of its own: generations are dear

deliveries = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 3), st.booleans()), min_size=1, max_size=25
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(order=deliveries, data=st.data())
def test_any_order_and_any_repetition_converge(
    order: list[tuple[int, int, int, bool]], data: Any, store: Store, generation: Generation, orders: TableSchema
) -> None:
    """However changes are reordered, repeated and batched, the largest version of each key remains."""
    run = next(_runs)
    by_version = {(key, position, seq): gone for key, position, seq, gone in order}
    changes = [
        change(run * 10 + key, Version(position * 8, seq), {"note": f"{position}.{seq}"}, gone=gone)
        for (key, position, seq), gone in by_version.items()
    ]
    expected: dict[str, Change] = {}
    for each in changes:
        if each.id not in expected or each.version > expected[each.id].version:
            expected[each.id] = each
    shuffled = data.draw(st.permutations(changes + changes[:3]), label="order")
    writer = store.writer_factory(generation)()
    for each in shuffled:
        writer.apply(orders, [each])
    writer.close()
    found = {
        each.id: (each.version, each.row)
        for each in store.contents(generation, orders, tombstones=True)
        if each.id in expected
    }
    assert found == {key: (each.version, each.row) for key, each in expected.items()}


def test_a_truncate_removes_older_rows_of_its_table_only(
    store: Store, generation: Generation, orders: TableSchema, prefix: str
) -> None:
    """A marker removes rows below its version, keeps later ones and other tables', and keeps late older ones out."""
    other = table(prefix, name="orders2")
    store.ensure_table(generation, other)
    apply(
        store, generation, orders, [change(1, 5), change(2, Version(80, 1)), change(3, Version(80, 3)), change(4, 11)]
    )
    apply(store, generation, other, [change(1, 5)])
    assert truncate(store, generation, orders, Version(80, 2)) == 2
    assert set(rows(store, generation, orders)) == {"3", "4"}
    assert set(rows(store, generation, other)) == {"1"}
    assert apply(store, generation, orders, [change(1, 5), change(7, Version(80, 1)), change(8, Version(80, 2))]) == []
    assert set(rows(store, generation, orders)) == {"3", "4", "8"}
    assert truncate(store, generation, orders, Version(72, 1)) == 0, "an older marker changes nothing"
    apply(store, generation, orders, [change(9, 9)])
    assert set(rows(store, generation, orders)) == {"3", "4", "8"}


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 3), st.sampled_from(["row", "gone", "truncate"])),
    min_size=1,
    max_size=20,
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(order=steps)
def test_truncates_among_changes_converge(
    order: list[tuple[int, int, int, str]], store: Store, generation: Generation, orders: TableSchema
) -> None:
    """In any order, a row exists if its last change is a row and no marker is above it."""
    run = next(_runs)
    marker, last = Version(0, 0), dict[str, Change]()
    kinds = {(key, position, seq): kind for key, position, seq, kind in order}
    for (key, position, seq), kind in kinds.items():
        version = Version(run * 1000 + position * 8, seq)
        if kind == "truncate":
            truncate(store, generation, orders, version)
            marker = max(marker, version)
            continue
        each = change(run * 10 + key, version, {"note": str(version)}, gone=kind == "gone")
        apply(store, generation, orders, [each])
        if each.id not in last or each.version > last[each.id].version:
            last[each.id] = each
    alive = {each.id: each.row for each in last.values() if each.row is not None and each.version >= marker}
    found = {each.id: each.row for each in store.contents(generation, orders) if each.id in last}
    assert found == alive


def test_a_truncate_reaches_every_row(store: Store, generation: Generation, orders: TableSchema) -> None:
    """A TRUNCATE removes rows that fill many pages."""
    apply(store, generation, orders, [change(key, 5) for key in range(6_000)])
    assert truncate(store, generation, orders, Version(48, 1)) == 6_000
    assert store.count(generation, orders) == 0


ODD_KEYS = [
    "",
    " ",
    "a/b?c#d%20",
    'q"\\',
    "*?[a-z]^\\-",
    "ключ 😀",
    "\u0000\u0001",
    "_id",
    "x" * 512,
    "é" * 256,
    "x" * 513,
    "é" * 2000,
    "sha256:0",
    "..",
    "null",
]


def test_every_key_is_a_row_of_its_own(store: Store, generation: Generation, orders: TableSchema) -> None:
    """Empty, blank and long keys and keys with special characters are distinct rows."""
    changes = [change(key, 5, {"note": str(place)}) for place, key in enumerate(ODD_KEYS)]
    assert apply(store, generation, orders, changes) == []
    expected = {each.id: json.loads(each.row or b"") for each in changes}
    assert rows(store, generation, orders) == expected
    assert len(expected) == len(ODD_KEYS)
    apply(store, generation, orders, [change(key, 6, gone=True) for key in ODD_KEYS[:7]])
    assert set(rows(store, generation, orders)) == {each.id for each in changes[7:]}


def test_tables_with_odd_names_do_not_mix(store: Store, generation: Generation, prefix: str) -> None:
    """Tables whose names differ only by case or dots, or have wildcard characters, do not share rows."""
    names = ["Orders", "orders", "or.ders", "or-ders", "or*", "or?ers", "x" * 63, '"; drop table t;--']
    tables = [
        TableSchema("public", name, f"{prefix}.{name}", ("id",), (SchemaColumn("id", "int8", -1),)) for name in names
    ]
    for number, each in enumerate(tables):
        assert store.ensure_table(generation, each) is Fit.READY
        apply(store, generation, each, [change(number, 5)])
    for number, each in enumerate(tables):
        assert set(rows(store, generation, each)) == {str(number)}
    truncate(store, generation, tables[4], Version(800, 1))
    assert [store.count(generation, each) for each in tables] == [1, 1, 1, 1, 0, 1, 1, 1]


def test_a_position_is_kept_and_given_back(store: Store, generation: Generation) -> None:
    """Every reader sees the saved position with its owner and time."""
    assert store.take(generation, "one").topics == {}
    saved = store.save_position(generation, SOME)
    assert saved == store.position(generation)
    assert (saved.owner, saved.topics, saved.version, saved.lsn) == ("one", SOME.topics, SOME.version, SOME.lsn)
    assert saved.written_ms > 0


def test_two_drivers_on_one_store_and_one_stops(
    kind: str, address: str, prefix: str, store: Store, generation: Generation
) -> None:
    """The last driver that takes a generation has it; the other cannot save a position."""
    store.take(generation, "one")
    store.save_position(generation, SOME)
    second = store_of(kind, address, prefix)
    found = second.take(generation, "two")
    assert found.topics == SOME.topics
    with pytest.raises(TakenOverError):
        store.save_position(generation, SOME)
    later = second.save_position(generation, msgspec.structs.replace(SOME, lsn=99))
    assert store.position(generation) == later
    second.close()


def test_generations_come_serve_and_go(store: Store, generation: Generation, orders: TableSchema) -> None:
    """No generation serves before the first switch, the serving one cannot be dropped, and a dropped one has no
    position.
    """
    assert store.serving() is None
    store.switch(generation)
    serving = store.serving()
    assert serving is not None
    assert (serving.number, serving.state) == (generation.number, "settled")
    second = store.create_generation([orders])
    assert [each.number for each in store.list_generations()] == [generation.number, second.number]
    with pytest.raises(RefusedError):
        store.drop(serving)
    store.take(generation, "one")
    store.switch(second)
    store.drop(generation)
    store.drop(generation)
    assert [each.number for each in store.list_generations()] == [second.number]
    assert store.position(generation) is None
    with pytest.raises(PositionLostError):
        store.take(generation, "one")
    with pytest.raises(PositionLostError):
        store.save_position(generation, SOME)


def test_rows_of_another_pipeline_neither_win_nor_stay(store: Store, orders: TableSchema) -> None:
    """A generation of a new pipeline rejects rows and TRUNCATEs of another pipeline, although their versions are
    larger.
    """
    first = store.create_generation([orders], "first")
    apply(store, first, orders, [change(1, 100), change(2, 100), change(3, 101, gone=True), change(6, 102)])
    truncate(store, first, orders, Version(99 * 8, 1))
    store.switch(first)
    second = store.create_generation([orders], "second")
    assert store.take(second, "one").pipeline_id == "second"
    apply(store, second, orders, [change(1, 5, {"note": "new"}), change(2, 6, gone=True), change(3, 5), change(4, 5)])
    if store.rebuilds_in_place:
        with pytest.raises(PositionLostError):
            apply(store, first, orders, [change(1, 200)])
        with pytest.raises(PositionLostError):
            truncate(store, first, orders, Version(200 * 8, 1))
        store.delete_stale_rows(second, orders, Version(10 * 8, 0))
    store.switch(second)
    assert rows(store, second, orders) == {"1": {"id": 1, "note": "new"}, "3": {"id": 3}, "4": {"id": 4}}
    apply(store, second, orders, [change(1, 7, gone=True), change(4, 4, {"note": "late"})])
    assert rows(store, second, orders) == {"3": {"id": 3}, "4": {"id": 4}}


@pytest.mark.parametrize("kind", KINDS, indirect=True)
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


def test_a_changed_key_needs_a_new_generation(store: Store, generation: Generation, orders: TableSchema) -> None:
    """Under another primary key the rows have other ids, so a new generation is required."""
    assert store.ensure_table(generation, orders) is Fit.READY
    assert store.ensure_table(generation, orders._replace(key=("note",))) is Fit.NEEDS_GENERATION
    assert store.ensure_table(generation, orders) is Fit.READY


@pytest.mark.parametrize("kind", KINDS, indirect=True)
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

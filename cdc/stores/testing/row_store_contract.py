"""What a store that is written row by row promises. Tests of `cdc.stores.contract.RowStore` and its `Writer`."""

from __future__ import annotations

import json
import pickle
import random
from contextlib import closing
from typing import Final

import pytest

from cdc.lsn import Version
from cdc.stores.contract import Change, Fit, Generation, PositionLostError, RowStore, SchemaColumn, TableSchema
from cdc.stores.testing.rows import apply, change, rows, table, truncate
from cdc.stores.testing.store_contract import TOPICS, OpenStore, StoreContract

__all__ = ["OpenStore", "RowStoreContract"]

_SHUFFLES: Final = 6
ODD_KEYS: Final = [
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


class RowStoreContract(StoreContract):
    """The tests for a row store. A subclass defines the fixture `open_store`."""

    def test_rows_come_back_as_they_went_in(self, store: RowStore, generation: Generation, orders: TableSchema) -> None:
        """A stored row has the event's bytes; a deleted row is not returned, but its version is kept."""
        one = change(1, 5, {"note": 'é " \\ \n 😀'})
        assert apply(store, generation, orders, [one, change(2, 6, gone=True)]) == []
        assert [(each.id, each.version) for each in store.contents(generation, orders)] == [("1", one.version)]
        assert rows(store, generation, orders) == {"1": json.loads(one.row or b"")}
        everything = {each.id: each for each in store.contents(generation, orders, tombstones=True)}
        assert everything["2"].version == Version(48, 1)
        assert everything["2"].row is None
        assert store.count(generation, orders) == 1

    def test_a_writer_factory_works_in_another_process(
        self, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """A writer factory can be sent to another process, and its writer works there."""
        writer = pickle.loads(pickle.dumps(store.writer_factory(generation)))()
        assert writer.apply(orders, [change(1, 5)]) == []
        writer.close()
        assert set(rows(store, generation, orders)) == {"1"}

    def test_an_older_version_never_wins(self, store: RowStore, generation: Generation, orders: TableSchema) -> None:
        """After v5, v4, a delete at v6 and v5 again, the row is absent."""
        for each in (change(1, 5), change(1, 4), change(1, 6, gone=True), change(1, 5)):
            apply(store, generation, orders, [each])
        assert rows(store, generation, orders) == {}

    def test_the_same_version_again_is_harmless(
        self, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """A batch that is repeated changes nothing."""
        batch = [change(1, 5, {"note": "a"}), change(2, 5, gone=True)]
        for _ in range(2):
            assert apply(store, generation, orders, batch) == []
        assert rows(store, generation, orders) == {"1": {"id": 1, "note": "a"}}

    def test_a_row_comes_back_after_its_delete(
        self, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """A row inserted again after its delete stays, without the tombstone's expiry."""
        for each in (change(1, 5), change(1, 6, gone=True), change(1, 7, {"note": "again"})):
            apply(store, generation, orders, [each])
        assert rows(store, generation, orders) == {"1": {"id": 1, "note": "again"}}

    @pytest.mark.parametrize("seed", range(_SHUFFLES))
    def test_any_order_and_any_repetition_converge(
        self, seed: int, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """However changes are reordered and repeated, the largest version of each key remains."""
        chance = random.Random(seed)
        versions = sorted({(chance.randrange(4), chance.randint(1, 6), chance.randrange(4)) for _ in range(25)})
        changes = [
            change(key, Version(position * 8, seq), {"note": f"{position}.{seq}"}, gone=chance.random() < 0.5)
            for key, position, seq in versions
        ]
        expected: dict[str, Change] = {}
        for each in changes:
            if each.id not in expected or each.version > expected[each.id].version:
                expected[each.id] = each
        delivered = changes + changes[:3]
        chance.shuffle(delivered)
        with closing(store.writer_factory(generation)()) as writer:
            for each in delivered:
                writer.apply(orders, [each])
        found = {each.id: (each.version, each.row) for each in store.contents(generation, orders, tombstones=True)}
        assert found == {key: (each.version, each.row) for key, each in expected.items()}

    def test_a_truncate_removes_older_rows_of_its_table_only(
        self, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """A marker removes its table's rows below its version, and keeps late older ones out."""
        other = table(TOPICS, name="orders2")
        store.ensure_table(generation, other)
        apply(
            store,
            generation,
            orders,
            [change(1, 5), change(2, Version(80, 1)), change(3, Version(80, 3)), change(4, 11)],
        )
        apply(store, generation, other, [change(1, 5)])
        assert truncate(store, generation, orders, Version(80, 2)) == 2
        assert set(rows(store, generation, orders)) == {"3", "4"}
        assert set(rows(store, generation, other)) == {"1"}
        assert (
            apply(store, generation, orders, [change(1, 5), change(7, Version(80, 1)), change(8, Version(80, 2))]) == []
        )
        assert set(rows(store, generation, orders)) == {"3", "4", "8"}
        assert truncate(store, generation, orders, Version(72, 1)) == 0, "an older marker changes nothing"
        apply(store, generation, orders, [change(9, 9)])
        assert set(rows(store, generation, orders)) == {"3", "4", "8"}

    @pytest.mark.parametrize("seed", range(_SHUFFLES))
    def test_truncates_among_changes_converge(
        self, seed: int, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """In any order, a row exists if its last change is a row and no marker is above it."""
        chance = random.Random(seed)
        marker, last = Version(0, 0), dict[str, Change]()
        for key, position, seq in sorted(
            {(chance.randrange(4), chance.randint(1, 6), chance.randrange(4)) for _ in range(20)},
            key=lambda _: chance.random(),
        ):
            version = Version(position * 8, seq)
            kind = chance.choice(["row", "gone", "truncate"])
            if kind == "truncate":
                truncate(store, generation, orders, version)
                marker = max(marker, version)
                continue
            each = change(key, version, {"note": str(version)}, gone=kind == "gone")
            apply(store, generation, orders, [each])
            if each.id not in last or each.version > last[each.id].version:
                last[each.id] = each
        alive = {each.id: each.row for each in last.values() if each.row is not None and each.version >= marker}
        assert {each.id: each.row for each in store.contents(generation, orders)} == alive

    def test_a_truncate_reaches_every_row(self, store: RowStore, generation: Generation, orders: TableSchema) -> None:
        """A TRUNCATE removes rows that fill many pages."""
        apply(store, generation, orders, [change(key, 5) for key in range(6_000)])
        assert truncate(store, generation, orders, Version(48, 1)) == 6_000
        assert store.count(generation, orders) == 0

    def test_every_key_is_a_row_of_its_own(self, store: RowStore, generation: Generation, orders: TableSchema) -> None:
        """Empty, blank and long keys and keys with special characters are distinct rows."""
        changes = [change(key, 5, {"note": str(place)}) for place, key in enumerate(ODD_KEYS)]
        assert apply(store, generation, orders, changes) == []
        expected = {each.id: json.loads(each.row or b"") for each in changes}
        assert rows(store, generation, orders) == expected
        assert len(expected) == len(ODD_KEYS)
        apply(store, generation, orders, [change(key, 6, gone=True) for key in ODD_KEYS[:7]])
        assert set(rows(store, generation, orders)) == {each.id for each in changes[7:]}

    def test_tables_with_odd_names_do_not_mix(self, store: RowStore, generation: Generation) -> None:
        """Tables whose names differ only by case or dots, or have wildcard characters, do not share rows."""
        names = ["Orders", "orders", "or.ders", "or-ders", "or*", "or?ers", "x" * 63, '"; drop table t;--']
        tables = [
            TableSchema("public", name, f"{TOPICS}.{name}", ("id",), (SchemaColumn("id", "int8", -1),))
            for name in names
        ]
        for number, each in enumerate(tables):
            assert store.ensure_table(generation, each) is Fit.READY
            apply(store, generation, each, [change(number, 5)])
        for number, each in enumerate(tables):
            assert set(rows(store, generation, each)) == {str(number)}
        truncate(store, generation, tables[4], Version(800, 1))
        assert [store.count(generation, each) for each in tables] == [1, 1, 1, 1, 0, 1, 1, 1]

    def test_rows_of_another_pipeline_neither_win_nor_stay(self, store: RowStore, orders: TableSchema) -> None:
        """A new pipeline's generation holds only its own rows. The old rows and TRUNCATE have larger versions.

        A larger version of the old pipeline that comes late is turned away.
        """
        first = store.create_generation([orders], "first")
        apply(store, first, orders, [change(1, 100), change(2, 100), change(3, 101, gone=True), change(6, 102)])
        truncate(store, first, orders, Version(99 * 8, 1))
        store.switch(first)
        second = store.create_generation([orders], "second")
        assert store.take(second, "one").pipeline_id == "second"
        apply(
            store, second, orders, [change(1, 5, {"note": "new"}), change(2, 6, gone=True), change(3, 5), change(4, 5)]
        )
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

    def test_a_changed_key_needs_a_new_generation(
        self, store: RowStore, generation: Generation, orders: TableSchema
    ) -> None:
        """Under another primary key the rows have other ids, so a new generation is required."""
        assert store.ensure_table(generation, orders) is Fit.READY
        assert store.ensure_table(generation, orders._replace(key=("note",))) is Fit.NEEDS_GENERATION
        assert store.ensure_table(generation, orders) is Fit.READY

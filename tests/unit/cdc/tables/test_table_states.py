"""What a difference between two looks at the catalog means for a table's topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cdc.errors import RefusedError
from cdc.tables.recorded_state import (
    FORMAT,
    CatalogColumn,
    Gone,
    Pending,
    TablePartition,
    TableState,
    TableStates,
    decode_states,
    why_incomplete,
)
from cdc.tables.watch import _advance


def column(number: int, name: str, **changes: Any) -> CatalogColumn:
    usual: dict[str, Any] = {"type_oid": 23, "type_modifier": -1, "entry": "700", "has_default": False}
    return CatalogColumn(number, name, **{**usual, **changes})


def table(name: str = "t", **changes: Any) -> TableState:
    usual: dict[str, Any] = {"key": ["id"], "storage": "1000", "columns": [column(1, "id"), column(2, "a")]}
    return TableState(schema="public", table=name, topic=f"shop.public.{name}", **{**usual, **changes})


@dataclass
class Look:
    """Advances states as a look at the catalog does."""

    states: TableStates = field(default_factory=TableStates)

    def at(self, lsn: int, now: dict[str, TableState], added: dict[str, str | None] | None = None) -> TableStates:
        self.states = _advance(self.states, now, lsn, added or {}, behind=lsn + 1)
        return self.states


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (table(), None),
        (table(storage="1001"), None),  # VACUUM FULL, TRUNCATE
        (table(columns=[column(1, "id"), column(2, "a", entry="701")]), None),  # SET DEFAULT, SET NOT NULL
        (table(columns=[column(1, "id")]), None),
        (table(columns=[column(1, "id"), column(2, "a"), column(3, "b")]), None),
        (
            table(columns=[column(1, "id"), column(2, "a"), column(3, "b", has_default=True)]),
            "column b was added with a default",
        ),
        (table(columns=[column(1, "id"), column(2, "a"), column(3, "b", has_default=True, is_streamed=False)]), None),
        (
            table(storage="1001", columns=[column(1, "id"), column(2, "a"), column(3, "b")]),
            "column b was added and the table rewritten",
        ),
        (table(columns=[column(1, "id"), column(3, "a")]), "column a was dropped and added again"),
        (table(columns=[column(1, "id"), column(2, "b")]), "column a was renamed to b"),
        (table(columns=[column(1, "id"), column(2, "a", type_oid=25)]), "column a changed its type"),
        (table(columns=[column(1, "id"), column(2, "a", type_modifier=8)]), "column a changed its type"),
        (
            table(storage="1001", columns=[column(1, "id"), column(2, "a", entry="701")]),
            "the table was rewritten with column a",
        ),
        (table(key=["a"]), "its key changed"),
        (table(key=["key"], columns=[column(1, "key"), column(2, "a")]), "column id was renamed to key"),
    ],
)
def test_only_what_changes_rows_without_row_events_makes_incomplete(now: TableState, reason: str | None) -> None:
    """A drop, a new column that is NULL everywhere and a mere rewrite leave the topic as good as it was."""
    assert why_incomplete(table(), now) == reason


def test_a_generated_column_that_becomes_an_ordinary_one() -> None:
    """It enters the stream; rows that are there have a value that was never sent. What it was before never counts."""
    hidden = table(columns=[column(1, "id"), column(2, "a", is_streamed=False)])
    renamed = table(columns=[column(1, "id"), column(2, "b", is_streamed=False)])
    assert why_incomplete(hidden, table()) == "column a is generated no longer"
    assert why_incomplete(hidden, renamed) is None


@pytest.mark.parametrize(
    ("leaves", "reason"),
    [
        ({"7": True, "8": False}, None),
        ({"7": True, "8": False, "9": True}, None),
        ({"7": True, "8": False, "9": False}, "a partition was attached"),
        ({"7": True}, "a partition was detached or dropped"),
    ],
)
def test_partitions_that_come_empty_change_nothing(leaves: dict[str, bool], reason: str | None) -> None:
    """One that was attached may have rows, one that is gone had some; one that was made as a partition was empty."""
    assert why_incomplete(table(leaves={"7": True, "8": False}), table(leaves=leaves)) == reason


def test_a_partition_that_was_away_meanwhile_is_told_from_one_that_was_rewritten() -> None:
    """Nobody streams what is written to it while it is detached. New partitions are no rewrite of those that stay."""
    before = table(leaves={"7": True}, parts={"7": TablePartition("/700", "70")})
    away = table(leaves={"7": False}, parts={"7": TablePartition("/701", "70")})
    assert why_incomplete(before, away) == "a partition was detached and attached again"
    new_column = [*table().columns, column(3, "b")]
    grown = {"leaves": {"7": True, "8": True}, "storage": "1001", "columns": new_column}
    assert (
        why_incomplete(
            before, table(**grown, parts={"7": TablePartition("/700", "70"), "8": TablePartition("/702", "80")})
        )
        is None
    )
    rewritten = table(**grown, parts={"7": TablePartition("/700", "71"), "8": TablePartition("/702", "80")})
    assert why_incomplete(before, rewritten) == "column b was added and the table rewritten"
    unknown = table(leaves={"7": True})  # of an earlier Tailrace
    assert why_incomplete(unknown, before) is None


def test_the_text_of_values_that_a_type_decides() -> None:
    """An enum's label under another name is in every row that has it; a new label is in none."""
    before = table(forms={"90": "good", "91": "1:23"})
    assert why_incomplete(before, table(forms={"90": "good", "91": "1:23", "92": "bad"})) is None
    assert why_incomplete(before, table()) is None
    assert why_incomplete(before, table(forms={"90": "fine", "91": "1:23"})) == "a type of its columns was altered"


def test_a_dropped_column_is_remembered_until_it_comes_back() -> None:
    """Rows in the topic may still have its values, under a name that means NULL for them now."""
    look = Look(TableStates(tables={"1": table(columns=[column(1, "id"), column(2, "a"), column(3, "b")])}))
    look.at(100, {"1": table(columns=[column(1, "id"), column(3, "b")])})
    states = look.at(200, {"1": table(columns=[column(1, "id"), column(3, "b"), column(4, "c")])})
    assert (states.pending, states.tables["1"].dropped) == ({}, ["a"])
    states = look.at(300, {"1": table(columns=[column(1, "id"), column(3, "b"), column(4, "c"), column(5, "a")])})
    assert states.pending == {"shop.public.t": Pending(300, "column a was dropped and added again")}
    assert states.tables["1"].dropped == []


def test_a_name_that_came_and_went_between_two_looks() -> None:
    """Rows went to its topic, which nobody owns: it is emptied, and the table copied. A name that stays is a rename."""
    known = TableStates(tables={"1": table("t")})
    assert known.with_stray(1, "public", "t", "shop.public.t", 90) is known
    assert known.with_stray(2, "public", "x", "shop.public.x", 90) is known
    strayed = known.with_stray(1, "public", "u", "shop.public.u", 90)
    assert decode_states(strayed.encode()) == strayed
    back = Look(strayed).at(100, {"1": table("t")})
    assert back.pending == {"shop.public.t": Pending(90, "it was renamed")}
    assert (back.emptying, back.strays) == ({"shop.public.u": Gone("public", "u", 101)}, {})
    renamed = Look(strayed).at(100, {"1": table("u")})
    assert renamed.pending == {"shop.public.u": Pending(100, "it was renamed")}
    assert set(renamed.emptying) == {"shop.public.t"}


def test_a_column_that_had_another_name_between_two_looks() -> None:
    """Rows that came in between lack it. One that is only dropped, added, or never published says nothing."""
    known = TableStates(tables={"1": table()})
    for columns in (["id", "a"], ["id"], ["id", "a", "b"]):
        assert known.with_columns_away(1, columns) is known
    away = known.with_columns_away(1, ["id", "b"])
    assert decode_states(away.encode()) == away
    back = Look(away).at(100, {"1": table()})
    assert back.pending == {"shop.public.t": Pending(100, "column a was renamed and renamed back")}
    assert back.away == {}
    dropped = Look(away).at(100, {"1": table(columns=[column(1, "id"), column(3, "b")])})
    assert dropped.pending == {}


def test_the_first_mark_stands() -> None:
    """What is missing began with the first change, whatever follows."""
    look = Look(TableStates(tables={"1": table()}))
    look.at(100, {"1": table(key=["a"])})
    states = look.at(200, {"1": table(key=["a"], columns=[column(1, "id"), column(2, "b")])})
    assert states.pending == {"shop.public.t": Pending(100, "its key changed", again=200)}


def test_new_tables_are_complete_only_if_they_and_their_topics_were_empty() -> None:
    """Also those that the operator has added: rows that were there are not in the stream."""
    found = {"1": table("empty"), "2": table("filled"), "3": table("again")}
    states = Look().at(100, found, added={"1": None, "3": "its topic has rows"})
    assert states.pending == {
        "shop.public.filled": Pending(100, "it was added while rows were in it"),
        "shop.public.again": Pending(100, "its topic has rows"),
    }


def test_a_table_that_is_gone_is_emptied_behind_its_last_row() -> None:
    """Its mark goes with it; the LSN is one behind everything that was seen of it."""
    look = Look(TableStates(tables={"1": table()}, pending={"shop.public.t": Pending(50, "x")}))
    states = look.at(100, {})
    assert states.pending == {}
    assert states.emptying == {"shop.public.t": Gone("public", "t", 101)}
    assert states.emptied(["shop.public.other"]).emptying == states.emptying
    assert states.emptied(["shop.public.t"]).emptying == {}


def test_tables_that_swap_their_names_are_both_incomplete() -> None:
    """Neither topic may be emptied: both are in use."""
    look = Look(TableStates(tables={"1": table("a"), "2": table("b")}))
    states = look.at(100, {"1": table("b"), "2": table("a")})
    assert set(states.pending) == {"shop.public.a", "shop.public.b"}
    assert states.emptying == {}


def test_a_relation_belongs_to_the_table_above_it() -> None:
    """A partition that the stream tells of first is remembered with its root."""
    states = TableStates(tables={"1": table("root", leaves={"7": True}), "2": table("plain")})
    assert [found.table if (found := states.root_of(oid)) else None for oid in (1, 2, 7, 8)] == [
        "root",
        "plain",
        "root",
        None,
    ]
    learned = states.with_leaf("1", "8", born=True, part=TablePartition("/9", "80"))
    assert learned.root_of(8) == learned.tables["1"]
    assert learned.tables["1"].leaves == {"7": True, "8": True}


def test_the_record_survives_and_a_newer_one_is_refused() -> None:
    """What an older version cannot understand it must not overwrite."""
    states = TableStates(
        tables={"1": table(leaves={"7": True})},
        pending={"shop.public.t": Pending(5, "x")},
        emptying={"shop.public.u": Gone("public", "u", 9)},
    )
    assert decode_states(states.encode()) == states
    with pytest.raises(RefusedError, match=f"format {FORMAT + 1}"):
        decode_states(msgspec.structs.replace(states, format=FORMAT + 1).encode())


def test_copy_mends_what_was_marked_before_it_began() -> None:
    """A copy that began after the last mark clears it; one that was under way when the table changed again does not."""
    states = TableStates().with_pending("shop.public.t", 100, "why").with_pending("shop.public.t", 200, "again")
    assert states.copied("shop.public.t", 150) is states
    assert states.copied("shop.public.t", 200).pending == {}


def test_a_table_that_was_never_copied_is_incomplete_and_not_due() -> None:
    """Until something else makes it incomplete: then all of it is copied, and the mark goes."""
    states = TableStates().never_copied("t", 16)
    assert states.pending["t"].by_choice
    assert states.due(first=False) == set()
    assert states.due(first=True) == {"t"}
    altered = states.with_pending("t", 32, "column x was renamed to y")
    assert altered.pending["t"] == Pending(16, "column x was renamed to y", 32)
    assert altered.due(first=False) == {"t"}
    assert not states.copied("t", 16).pending
    assert decode_states(states.encode()) == states

"""What a difference between two readings of the catalog means for a table's topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cdc.errors import RefusedError
from cdc.tables.recorded_state import (
    FORMAT,
    CatalogColumn,
    IncompleteMark,
    RemovedTable,
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
    """Advances the states as a reading of the catalog does."""

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
    """Only changes of rows without row events make a table incomplete, not a drop, a NULL column or a rewrite."""
    assert why_incomplete(table(), now) == reason


def test_a_generated_column_that_becomes_an_ordinary_one() -> None:
    """A generated column that becomes ordinary makes the table incomplete, and changes before that do not."""
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
    """Attached and detached partitions make the table incomplete, and newly created ones do not."""
    assert why_incomplete(table(leaves={"7": True, "8": False}), table(leaves=leaves)) == reason


def test_a_partition_that_was_away_meanwhile_is_told_from_one_that_was_rewritten() -> None:
    """A partition detached meanwhile makes the table incomplete, and new partitions are no rewrite of others."""
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
    """A renamed enum label makes the table incomplete, and a new label does not."""
    before = table(forms={"90": "good", "91": "1:23"})
    assert why_incomplete(before, table(forms={"90": "good", "91": "1:23", "92": "bad"})) is None
    assert why_incomplete(before, table()) is None
    assert why_incomplete(before, table(forms={"90": "fine", "91": "1:23"})) == "a type of its columns was altered"


def test_a_dropped_column_is_remembered_until_it_comes_back() -> None:
    """A dropped column added again makes the table incomplete, since the topic has its old values."""
    poll = Look(TableStates(tables={"1": table(columns=[column(1, "id"), column(2, "a"), column(3, "b")])}))
    poll.at(100, {"1": table(columns=[column(1, "id"), column(3, "b")])})
    states = poll.at(200, {"1": table(columns=[column(1, "id"), column(3, "b"), column(4, "c")])})
    assert (states.pending, states.tables["1"].dropped) == ({}, ["a"])
    states = poll.at(300, {"1": table(columns=[column(1, "id"), column(3, "b"), column(4, "c"), column(5, "a")])})
    assert states.pending == {"shop.public.t": IncompleteMark(300, "column a was dropped and added again")}
    assert states.tables["1"].dropped == []


def test_a_name_that_came_and_went_between_two_readings() -> None:
    """A topic of a name that existed only between two readings is emptied, and the table copied."""
    known = TableStates(tables={"1": table("t")})
    assert known.with_temporary_name(1, "public", "t", "shop.public.t", 90) is known
    assert known.with_temporary_name(2, "public", "x", "shop.public.x", 90) is known
    strayed = known.with_temporary_name(1, "public", "u", "shop.public.u", 90)
    assert decode_states(strayed.encode()) == strayed
    back = Look(strayed).at(100, {"1": table("t")})
    assert back.pending == {"shop.public.t": IncompleteMark(90, "it was renamed")}
    assert (back.emptying, back.strays) == ({"shop.public.u": RemovedTable("public", "u", 101)}, {})
    renamed = Look(strayed).at(100, {"1": table("u")})
    assert renamed.pending == {"shop.public.u": IncompleteMark(100, "it was renamed")}
    assert set(renamed.emptying) == {"shop.public.t"}


def test_a_column_that_had_another_name_between_two_readings() -> None:
    """A column renamed there and back makes the table incomplete, and an added or dropped one does not."""
    known = TableStates(tables={"1": table()})
    for columns in (["id", "a"], ["id"], ["id", "a", "b"]):
        assert known.with_renamed_columns(1, columns) is known
    away = known.with_renamed_columns(1, ["id", "b"])
    assert decode_states(away.encode()) == away
    back = Look(away).at(100, {"1": table()})
    assert back.pending == {"shop.public.t": IncompleteMark(100, "column a was renamed and renamed back")}
    assert back.away == {}
    dropped = Look(away).at(100, {"1": table(columns=[column(1, "id"), column(3, "b")])})
    assert dropped.pending == {}


def test_the_first_mark_stands() -> None:
    """The first reason for incompleteness is kept."""
    poll = Look(TableStates(tables={"1": table()}))
    poll.at(100, {"1": table(key=["a"])})
    states = poll.at(200, {"1": table(key=["a"], columns=[column(1, "id"), column(2, "b")])})
    assert states.pending == {"shop.public.t": IncompleteMark(100, "its key changed", again=200)}


def test_new_tables_are_complete_only_if_they_and_their_topics_were_empty() -> None:
    """A new or added table is complete only if it and its topic are empty."""
    found = {"1": table("empty"), "2": table("filled"), "3": table("again")}
    states = Look().at(100, found, added={"1": None, "3": "its topic has rows"})
    assert states.pending == {
        "shop.public.filled": IncompleteMark(100, "it was added while rows were in it"),
        "shop.public.again": IncompleteMark(100, "its topic has rows"),
    }


def test_a_table_that_is_gone_is_emptied_behind_its_last_row() -> None:
    """A dropped table's marker has an LSN after all its rows, and its incomplete state is removed."""
    poll = Look(TableStates(tables={"1": table()}, pending={"shop.public.t": IncompleteMark(50, "x")}))
    states = poll.at(100, {})
    assert states.pending == {}
    assert states.emptying == {"shop.public.t": RemovedTable("public", "t", 101)}
    assert states.emptied(["shop.public.other"]).emptying == states.emptying
    assert states.emptied(["shop.public.t"]).emptying == {}


def test_tables_that_swap_their_names_are_both_incomplete() -> None:
    """When two tables swap names, both are incomplete and neither topic is emptied."""
    poll = Look(TableStates(tables={"1": table("a"), "2": table("b")}))
    states = poll.at(100, {"1": table("b"), "2": table("a")})
    assert set(states.pending) == {"shop.public.a", "shop.public.b"}
    assert states.emptying == {}


def test_a_relation_belongs_to_the_table_above_it() -> None:
    """A partition seen first in the stream belongs to its root."""
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
    """The record survives, and one of a newer format is refused and not overwritten."""
    states = TableStates(
        tables={"1": table(leaves={"7": True})},
        pending={"shop.public.t": IncompleteMark(5, "x")},
        emptying={"shop.public.u": RemovedTable("public", "u", 9)},
    )
    assert decode_states(states.encode()) == states
    with pytest.raises(RefusedError, match=f"format {FORMAT + 1}"):
        decode_states(msgspec.structs.replace(states, format=FORMAT + 1).encode())


def test_a_snapshot_completes_only_earlier_marks() -> None:
    """A snapshot completes tables marked before it began, and not those that changed during it."""
    states = TableStates().with_pending("shop.public.t", 100, "why").with_pending("shop.public.t", 200, "again")
    assert states.copied("shop.public.t", 150) is states
    assert states.copied("shop.public.t", 200).pending == {}


def test_a_table_that_was_never_copied_is_incomplete_and_not_due() -> None:
    """A table that was never copied is not due until another change makes it incomplete."""
    states = TableStates().never_copied("t", 16)
    assert states.pending["t"].by_choice
    assert states.due(first=False) == set()
    assert states.due(first=True) == {"t"}
    altered = states.with_pending("t", 32, "column x was renamed to y")
    assert altered.pending["t"] == IncompleteMark(16, "column x was renamed to y", 32)
    assert altered.due(first=False) == {"t"}
    assert not states.copied("t", 16).pending
    assert decode_states(states.encode()) == states

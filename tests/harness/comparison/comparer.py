"""Compares the source with topics and stores by full content and reports each difference.

A reader gives a table's rows by key in canonical form. The source is one reader, the topic another, and each store one
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.names import topic as topic_name
from tests.harness.comparison import canonical
from tests.harness.kafka.records import Key, Record, Row, last_rows, read_topic
from tests.harness.postgres.catalog import Table
from tests.harness.processes.waiting import eventually

Reader = Callable[[Table], dict[Key, Row]]

_SHOWN_DIFFERENCES: Final = 20
_SHOWN_CHARACTERS: Final = 200
_ABSENT: Final = "<no such column>"
# What the output functions depend on; the product may set what it likes, this reading stays the same.
_SETTINGS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        "datestyle=ISO",
        "timezone=UTC",
        "intervalstyle=postgres",
        "extra_float_digits=1",
        "bytea_output=hex",
        "lc_monetary=C",
    )
)


@dataclass(frozen=True, slots=True)
class Difference:
    """`column` is None where the whole row is missing or extra."""

    table: str
    key: Key
    column: str | None
    expected: Any
    actual: Any

    def __str__(self) -> str:
        if self.column is not None:
            return f"{self.table} {self.key} {self.column}: {_short(self.expected)} became {_short(self.actual)}"
        if self.actual is None:
            return f"{self.table} {self.key}: missing"
        return f"{self.table} {self.key}: extra"


def source_reader(dsn: str) -> Reader:
    """Reads the database itself, through the types' output functions and without the product's code."""

    def read(table: Table) -> dict[Key, Row]:
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
            sql.Identifier(table.schema, table.name),
        )
        with psycopg.connect(dsn, options=_SETTINGS, client_encoding="UTF8") as connection:
            result = connection.execute(query).pgresult
            assert result is not None
            rows = [_source_row(table, result, number) for number in range(result.ntuples)]
        return {tuple(row[name] for name in table.key): row for row in rows}

    return read


def topic_reader(bootstrap: str, prefix: str) -> Reader:
    """Reads the rows that a consumer of the whole topic ends up with."""

    def read(table: Table) -> dict[Key, Row]:
        return last_rows(table, read_topic(bootstrap, topic_name(prefix, table.schema, table.name)))

    return read


def differences(tables: Iterable[Table], expected: Reader, actual: Reader) -> list[Difference]:
    found: list[Difference] = []
    for table in tables:
        assert table.key, f"{table} has no primary key to compare by"
        found.extend(_table_differences(str(table), expected(table), actual(table)))
    return found


def assert_same(
    tables: Sequence[Table],
    expected: Reader,
    *actual: Reader,
    deadline_seconds: float = 30.0,
    settled: Callable[[], object] | None = None,
) -> None:
    """Every reader ends up with the expected content, row by row, within the deadline.

    `settled` is a fence: it is waited for first (for example until the topic holds an LSN), and then there is one
    comparison that counts. Without it, readers may catch up until the deadline.
    """
    if settled is not None:
        eventually(settled, deadline_seconds, "the fence before comparing")
        deadline_seconds = 0
    for reader in actual:
        eventually(lambda: _no_differences(tables, expected, reader), deadline_seconds, "equal content")  # noqa: B023


def assert_exactly_once(records: Iterable[Record]) -> None:
    """No event twice, and each key's versions rise with the offset; a tombstone repeats its delete's version."""
    last: dict[bytes, Record] = {}
    wrong: list[str] = []
    for record in records:
        if record.op == "t" and b'"by"' in record.key:
            continue  # ends a copy, at the version where that began
        before = last.get(record.key)
        last[record.key] = record
        if record.version is None:
            wrong.append(f"no version: {_place(record)}")
        elif before is None or before.version is None:
            continue
        elif record.value is None:
            if before.op != "d" or record.version != before.version:
                wrong.append(f"a tombstone that is not its delete's: {_place(before)}, then {_place(record)}")
        elif record.version <= before.version:
            word = "twice" if record.version == before.version else "back in time"
            wrong.append(f"{word}: {_place(before)}, then {_place(record)}")
    assert not wrong, _listing(wrong, "records out of order")


def _no_differences(tables: Sequence[Table], expected: Reader, actual: Reader) -> bool:
    found = differences(tables, expected, actual)
    assert not found, _listing([str(difference) for difference in found], "differences")
    return True


def _table_differences(table: str, expected: dict[Key, Row], actual: dict[Key, Row]) -> Iterable[Difference]:
    for key, row in expected.items():
        other = actual.get(key)
        if other is None:
            yield Difference(table, key, None, row, None)
            continue
        for column in {**row, **other}:
            here, there = row.get(column, _ABSENT), other.get(column, _ABSENT)
            if here != there:
                yield Difference(table, key, column, here, there)
    for key, row in actual.items():
        if key not in expected:
            yield Difference(table, key, None, None, row)


def _source_row(table: Table, result: psycopg.pq.abc.PGresult, number: int) -> Row:
    row: Row = {}
    for place, column in enumerate(table.columns):
        value = result.get_value(number, place)
        row[column.name] = canonical.from_text(column.type, None if value is None else value.decode())
    return row


def _place(record: Record) -> str:
    key = record.key.decode(errors="replace")
    return f"{record.topic}[{record.partition}]@{record.offset} key {key} op {record.op} version {record.version}"


def _short(value: Any) -> str:
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _listing(lines: list[str], what: str) -> str:
    more = f"\n  … and {len(lines) - _SHOWN_DIFFERENCES} more" if len(lines) > _SHOWN_DIFFERENCES else ""
    return f"{len(lines)} {what}:\n  " + "\n  ".join(lines[:_SHOWN_DIFFERENCES]) + more

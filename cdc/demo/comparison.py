"""Compares a store with the source: every row of every table, by its full content.

The source's rows are read at one Postgres snapshot, with the SQL and the encoding of an initial snapshot. The store's
rows are read from the store itself. The topics and the sync's recorded position are not used. This is for a small
database without concurrent writes: it keeps one table of each side in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import LSN
from cdc.positions.wait import wait_for
from cdc.postgres import catalog
from cdc.postgres.connection import connect
from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import BlockRange
from cdc.snapshot.source_reader import Readable, at_snapshot, lines, lock
from cdc.snapshot.table_description import DescribedTable, describe_tables
from cdc.stores.contract import Store, TableSchema
from cdc.stores.registry import open_store
from cdc.stores.row_ids import row_id_of
from cdc.tables import schema_record

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one store. `differences`: the first few, as table and row id, without values."""

    store: str
    rows: int
    tables: int
    differing: int = 0
    differences: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.differing == 0

    def __str__(self) -> str:
        if self.differing == 0:
            return f"{self.store} equals the source: {self.rows:,} rows in {self.tables} tables."
        return f"{self.store} differs from the source in {self.differing:,} rows: {', '.join(self.differences)}."


def compare_all(config: Config, deadline_seconds: float) -> Iterator[Comparison]:
    """Compare each store of the config, as soon as it has everything that is committed at the time of the call."""
    with connect(config.source.conninfo()) as connection:
        lsn = catalog.current_lsn(connection)
    for name in config.stores:
        yield _compare_when_there(config, name, lsn, deadline_seconds)


def _compare_when_there(config: Config, name: str, lsn: LSN, deadline_seconds: float) -> Comparison:
    began = time.monotonic()
    if not wait_for(config, [name], lsn, timeout_seconds=deadline_seconds):
        waited = time.monotonic() - began
        raise TransientError(f"{name} does not have everything up to {lsn} after {waited:.0f} seconds.")
    with closing(open_store(name, config.stores[name], config.kafka.prefix)) as store:
        return compare(config, name, store)


def compare(config: Config, name: str, store: Store) -> Comparison:
    """Compare the current state of the store with that of the source."""
    serving = store.serving()
    if serving is None:
        raise TransientError(f"{name} serves no data yet.")
    rows, differing, tables = 0, [], 0
    with at_snapshot(config.source.conninfo(), None) as connection:
        chosen = catalog.tables(connection, config.source.tables)
        gets = config.stores[name].gets
        oids = [str(each.oid) for each in chosen if gets(each.schema, each.name)]
        for table in describe_tables(connection, config, oids).values():
            tables += 1
            expected = _source_rows(connection, table)
            rows += len(expected)
            held = {each.id: each.row for each in store.contents(serving, _schema(table))}
            differing += [
                f"{table.shape} {row}"
                for row in sorted(expected.keys() | held.keys())
                if not _is_same(expected.get(row), held.get(row))
            ]
    return Comparison(
        store=name, rows=rows, tables=tables, differing=len(differing), differences=tuple(differing[:_SHOWN])
    )


def _source_rows(connection: psycopg.Connection[Any], table: DescribedTable) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for leaf in table.leaves:
        encoder = LineEncoder(table.table(leaf.relation), b"", b"")
        readable = lock(connection, table, leaf, encoder.columns)
        if not isinstance(readable, Readable):
            raise TransientError(f"{table.shape} cannot be compared: {readable}.")
        everything = BlockRange(table=table.oid, relation=leaf.relation.oid, first_block=0, end_block=None)
        for block in lines(connection, readable, everything, encoder.columns):
            found.update((row_id_of(key), row) for key, row in encoder.encode(block))
    return found


def _is_same(expected: bytes | None, held: bytes | None) -> bool:
    """Return whether two rows are equal as JSON. Whitespace and the order of keys may differ; digits may not."""
    if expected is None or held is None:
        return False
    return expected == held or _values(expected) == _values(held)


def _values(row: bytes) -> Any:
    return json.loads(row, parse_float=str, parse_int=str)


def _schema(table: DescribedTable) -> TableSchema:
    return TableSchema.from_record(json.dumps(schema_record.describe(table.table(table.relation))).encode())

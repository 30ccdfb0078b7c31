"""Reads a table's current rows for the audit through pyiceberg: in slices of one snapshot's files, by id, and a sample.

Implements `cdc.stores.scan.StoreScan`. The scan formats rows as capture does, so that the audit can compare bytes.
Values that the warehouse holds as text are compared as text. The scan writes nothing. Only Spark's MERGE repairs rows.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from cdc.config import IcebergConfig
from cdc.errors import TransientError
from cdc.lsn import Version
from cdc.stores.contract import Generation, StoredRow, TableSchema
from cdc.stores.row_ids import row_id_of
from cdc.stores.scan import ReadSlice, StoreScan
from sinks.iceberg import library, naming
from sinks.iceberg.catalog import iceberg_errors
from sinks.iceberg.contents import json_row
from sinks.iceberg.schemas import WarehouseColumn, key_columns
from sinks.iceberg.store import IcebergStore
from sinks.iceberg.tables import types_of
from sinks.typed_columns import STRING, element_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

_ROWS_AT_ONCE: Final = 2000
#: Above this number of ids, `rows` reads every file instead of filtering by key.
_MOST_SOUGHT: Final = 5000
# Limits of `is_cheap`: without and with a filter by key. Without a filter every row is decoded, which is slower.
_CHEAP_BYTES: Final = 2 << 20
_CHEAP_BYTES_SOUGHT: Final = 64 << 20
_NOBODYS: Final = Version(0, 0)
# From these values on, Postgres writes an exponent. Python writes the same digits, but an exponent only from 1e16 on.
_EXPONENT_FROM: Final = {"float": 1e6, "double": 1e15}
# Types whose values are always JSON strings in the topic. A text column holds the same text.
_TEXTS: Final = re.compile(
    r"text|varchar|bpchar|char|name|xml|jsonb?|uuid|numeric|money|bytea|date|time(stamp)?(tz)?|interval|varbit|inet|cidr"
    r"|macaddr8?|\w+range"
)
_SOUGHT: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "bigint": int,
    STRING: str,
    "date": lambda text: datetime.date.fromisoformat(text.removesuffix("Z")),
}


@dataclass(frozen=True, slots=True)
class SliceReader:
    """Converts Arrow batches of one table to rows. `kinds` are the column types by their names in the warehouse."""

    table: TableSchema
    columns: tuple[WarehouseColumn, ...]
    kinds: dict[str, str]

    @classmethod
    def of(cls, found: Table, table: TableSchema, columns: list[WarehouseColumn]) -> SliceReader:
        """Create a reader for the columns that the Iceberg table has."""
        there = {each.name for each in found.schema().fields}
        present = [column for column in columns if column.name in there]
        return cls(table, tuple(present), types_of(found, present))

    def rows(self, batch: pa.RecordBatch, wanted: frozenset[str] | None = None) -> Iterator[list[StoredRow]]:
        """Yield the batch's rows in lists. If `wanted` is given, only rows with these ids."""
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = [self._row(values) for values in batch.slice(first, _ROWS_AT_ONCE).to_pylist()]
            yield [row for row in some if wanted is None or row.id in wanted]

    def _row(self, held: dict[str, Any]) -> StoredRow:
        values = json_row(self.table, list(self.columns), self.kinds, held)
        for column in self.columns:
            kind = self.kinds[column.name]
            least = _EXPONENT_FROM.get(element_type(kind) or kind)
            if least is not None:
                values[column.source] = _spelled(values[column.source], least)
        key = orjson.dumps({name: values.get(name) for name in self.table.key})
        position, seq = held.get(naming.POSITION), held.get(naming.SEQ)
        version = _NOBODYS if position is None or seq is None else Version(position, seq)
        return StoredRow(row_id_of(key), version, orjson.dumps(values))


@dataclass(frozen=True, slots=True)
class IcebergSlice:
    """Reads some data files of one snapshot, with their delete files. `io` may contain secrets."""

    metadata: TableMetadata = field(repr=False)
    io: FileIO = field(repr=False)
    projection: Schema = field(repr=False)
    tasks: tuple[FileScanTask, ...] = field(repr=False)
    reader: SliceReader

    def __call__(self) -> Iterator[list[StoredRow]]:
        for batch in self.batches():
            yield from self.reader.rows(batch)

    def batches(self, row_filter: BooleanExpression | None = None) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches, one file after another. Given all files, pyiceberg would hold all in memory at once."""
        scan = library.ArrowScan(self.metadata, self.io, self.projection, row_filter or library.AlwaysTrue())
        with iceberg_errors():
            for task in self.tasks:
                yield from scan.to_record_batches([task])


class IcebergScan(StoreScan):
    """Reads one generation of the warehouse for the audit."""

    def __init__(self, name: str, settings: IcebergConfig, prefix: str, generation: Generation) -> None:
        self._name = name
        self._generation = generation
        self._store = IcebergStore(name, settings, prefix)

    @contextmanager
    def slices(self, table: TableSchema, count: int) -> Iterator[list[ReadSlice]]:
        """Yield at most `count` slices of the files of the current snapshot."""
        yield [slice_ for slice_ in self._planned(table, count) if slice_.tasks]

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        """Return the current rows. The result has no tombstones, because deletes are only in the history."""
        wanted = frozenset(ids)
        sought = self._sought(table, wanted)
        found: dict[str, list[StoredRow]] = {}
        for slice_ in self._planned(table, 1, sought):
            for batch in slice_.batches(sought):
                for some in slice_.reader.rows(batch, wanted):
                    for row in some:
                        found.setdefault(row.id, []).append(row)
        return {each: rows[0] if len(rows) == 1 else _several(rows) for each, rows in found.items()}

    def is_cheap(self, table: TableSchema, ids: Sequence[str]) -> bool:
        """Decide by the size of the files that may hold the rows. Random keys may be in all files."""
        sought = self._sought(table, frozenset(ids))
        [planned] = self._planned(table, 1, sought)
        size = sum(task.file.file_size_in_bytes for task in planned.tasks)
        return size <= (_CHEAP_BYTES if sought is None else _CHEAP_BYTES_SOUGHT)

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """Return `count` consecutive rows from a random file."""
        [whole] = self._planned(table, 1)
        if not whole.tasks:
            return []
        chance = random.SystemRandom()
        one = IcebergSlice(whole.metadata, whole.io, whole.projection, (chance.choice(whole.tasks),), whole.reader)
        batch, seen = None, 0
        for each in one.batches():  # reservoir sampling: holds one batch in memory, and each has the same probability
            if each.num_rows:
                seen += 1
                batch = each if batch is None or chance.randrange(seen) == 0 else batch
        if batch is None:
            return []
        first = chance.randrange(max(1, batch.num_rows - count + 1))
        return [row for some in one.reader.rows(batch.slice(first, count)) for row in some]

    def spelled(self, table: TableSchema) -> frozenset[str]:
        """Return the text columns whose values are not JSON strings in the topic, and columns with an outdated type.

        A column's type is outdated if the source's type changed and the warehouse kept the old one.
        """
        columns = self._store.tables.columns(table)
        kinds = types_of(self._found(table), columns)
        return frozenset(
            column.name
            for column, stored in zip(table.columns, columns, strict=True)
            if (kinds[stored.name] == STRING and _TEXTS.fullmatch(column.type) is None)
            or kinds[stored.name] != stored.type
        )

    def close(self) -> None:
        self._store.close()

    def _planned(
        self, table: TableSchema, count: int, row_filter: BooleanExpression | None = None
    ) -> list[IcebergSlice]:
        """Divide the files that may hold matching rows into slices of about equal size. Uses the current snapshot."""
        found = self._found(table)
        reader = SliceReader.of(found, table, self._store.tables.columns(table))
        with iceberg_errors():
            scan = found.scan() if row_filter is None else found.scan(row_filter=row_filter)
            planned = sorted(scan.plan_files(), key=lambda task: task.file.file_size_in_bytes)
        return [
            IcebergSlice(found.metadata, found.io, found.schema(), tuple(planned[number::count]), reader)
            for number in range(count)
        ]

    def _found(self, table: TableSchema) -> Table:
        name = self._store.table_name(self._generation, table)
        found = self._store.tables.load(name)
        if found is None:
            raise TransientError(
                f"{self._name} has no table {'.'.join(name)}.",
                remedy=f"Rebuild the warehouse: tailrace bootstrap {self._name}",
            )
        return found

    def _sought(self, table: TableSchema, ids: frozenset[str]) -> BooleanExpression | None:
        """Return a filter by the key's first column. None: every row must be read.

        A filter is possible if the ids contain the column's value, and the column's type allows to skip files.
        """
        first = key_columns(table, self._store.tables.columns(table))[0]
        value_of = _SOUGHT.get(first.type)
        if value_of is None or first.source in self.spelled(table) or len(ids) > _MOST_SOUGHT:
            return None
        values = set()
        for each in ids:
            if each.startswith("sha256:"):
                return None
            try:
                text = each if len(table.key) == 1 else msgspec.json.decode(each, type=list[str])[0]
                values.add(value_of(text))
            except (ValueError, IndexError):
                continue  # no row of this table has such an id
        return library.In(first.name, values) if values else None  # type: ignore[call-arg,arg-type]  # pydantic


def _several(rows: Sequence[StoredRow]) -> StoredRow:
    """Return an invalid row for a key that the table holds more than once, so that the audit reports a difference."""
    return StoredRow(
        rows[0].id, max(row.version for row in rows), b"[" + b",".join(row.row or b"" for row in rows) + b"]"
    )


def _spelled(value: Any, least: float) -> Any:
    """Format a float with Postgres's digits and exponent. Other values stay unchanged."""
    if isinstance(value, list):
        return [_spelled(each, least) for each in value]
    if not isinstance(value, float):
        return value
    text = repr(value)
    if "e" not in text and abs(value) >= least:
        digits = text.removesuffix(".0").replace(".", "").strip("-0")
        text = f"{value:.{len(digits) - 1}e}"
    return orjson.Fragment(text)

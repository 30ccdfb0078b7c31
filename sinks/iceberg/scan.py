"""A table's current rows for the audit: in slices of one snapshot's files, by id, and a sample, through pyiceberg.

The contract is `cdc.stores.scan.StoreScan`. Rows are spelled as capture spells them, so that bytes can be compared.
What the warehouse holds as text is compared as text. Nothing is written: only Spark's MERGE does that.
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
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.stores.contract import Generation, StoredRow, TableSchema
from cdc.stores.row_ids import row_id_of
from cdc.stores.scan import Forced, ReadSlice
from sinks.iceberg import naming
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
#: More ids than this are looked for in every file.
_MOST_SOUGHT: Final = 5000
# Rows that are not sought by their key are all looked at, one by one.
_CHEAP_BYTES: Final = 2 << 20
_CHEAP_BYTES_SOUGHT: Final = 64 << 20
_NOBODYS: Final = Version(0, 0)
# From these on Postgres writes an exponent; Python's digits are the same, its exponents begin at 16.
_EXPONENT_FROM: Final = {"float": 1e6, "double": 1e15}
# Types whose form in the topic is a JSON string, whatever the value: a text column holds just that text.
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
    """How rows of one table are read. `kinds`: of its columns, by their names in the warehouse."""

    table: TableSchema
    columns: tuple[WarehouseColumn, ...]
    kinds: dict[str, str]

    @classmethod
    def of(cls, found: Table, table: TableSchema, columns: list[WarehouseColumn]) -> SliceReader:
        there = {each.name for each in found.schema().fields}
        present = [column for column in columns if column.name in there]
        return cls(table, tuple(present), types_of(found, present))

    def rows(self, batch: pa.RecordBatch, wanted: frozenset[str] | None = None) -> Iterator[list[StoredRow]]:
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
    """Some files of one snapshot, with what was deleted from them. `io` may hold secrets."""

    metadata: TableMetadata = field(repr=False)
    io: FileIO = field(repr=False)
    projection: Schema = field(repr=False)
    tasks: tuple[FileScanTask, ...] = field(repr=False)
    reader: SliceReader

    def __call__(self) -> Iterator[list[StoredRow]]:
        for batch in self.batches():
            yield from self.reader.rows(batch)

    def batches(self, row_filter: BooleanExpression | None = None) -> Iterator[pa.RecordBatch]:
        """File by file: pyiceberg would hold them all at once."""
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - see catalog.py
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 - see catalog.py

        scan = ArrowScan(self.metadata, self.io, self.projection, row_filter or AlwaysTrue())
        with iceberg_errors():
            for task in self.tasks:
                yield from scan.to_record_batches([task])


class IcebergScan:
    def __init__(self, name: str, settings: IcebergConfig, prefix: str, generation: Generation) -> None:
        self._name = name
        self._generation = generation
        self._store = IcebergStore(name, settings, prefix)

    @contextmanager
    def slices(self, table: TableSchema, count: int) -> Iterator[list[ReadSlice]]:
        yield [slice_ for slice_ in self._planned(table, count) if slice_.tasks]

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        """Deletes are in the history, and not here: what was deleted is not known."""
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
        """By the files that may hold them: keys that came at random are in all of them."""
        sought = self._sought(table, frozenset(ids))
        [planned] = self._planned(table, 1, sought)
        size = sum(task.file.file_size_in_bytes for task in planned.tasks)
        return size <= (_CHEAP_BYTES if sought is None else _CHEAP_BYTES_SOUGHT)

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """From one file that chance chooses, so many in a row."""
        [whole] = self._planned(table, 1)
        if not whole.tasks:
            return []
        chance = random.SystemRandom()
        one = IcebergSlice(whole.metadata, whole.io, whole.projection, (chance.choice(whole.tasks),), whole.reader)
        batch, seen = None, 0
        for each in one.batches():  # one at a time in memory, each with the same chance
            if each.num_rows:
                seen += 1
                batch = each if batch is None or chance.randrange(seen) == 0 else batch
        if batch is None:
            return []
        first = chance.randrange(max(1, batch.num_rows - count + 1))
        return [row for some in one.reader.rows(batch.slice(first, count)) for row in some]

    def spelled(self, table: TableSchema) -> frozenset[str]:
        """Texts that stand for something else, and columns that have kept their type when the source's got another."""
        columns = self._store.tables.columns(table)
        kinds = types_of(self._found(table), columns)
        return frozenset(
            column.name
            for column, stored in zip(table.columns, columns, strict=True)
            if (kinds[stored.name] == STRING and _TEXTS.fullmatch(column.type) is None)
            or kinds[stored.name] != stored.type
        )

    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        raise RefusedError(
            f"{len(forced)} rows of {table} in {self._name} cannot be mended one by one.",
            remedy=f"Build the warehouse anew: tailrace bootstrap {self._name}",
        )

    def close(self) -> None:
        self._store.close()

    def _planned(
        self, table: TableSchema, count: int, row_filter: BooleanExpression | None = None
    ) -> list[IcebergSlice]:
        """Files that may hold such rows, as the table is now; large and small ones to all slices alike."""
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
                remedy=f"tailrace bootstrap {self._name} builds it anew.",
            )
        return found

    def _sought(self, table: TableSchema, ids: frozenset[str]) -> BooleanExpression | None:
        """By the key's first column, where an id says it and files can be told by it; None: look at every row."""
        from pyiceberg.expressions import In  # noqa: PLC0415 - see catalog.py

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
        return In(first.name, values) if values else None  # type: ignore[call-arg,arg-type]  # pydantic's view of it


def _several(rows: Sequence[StoredRow]) -> StoredRow:
    """A key that is there more than once is no row at all, whatever its rows say."""
    return StoredRow(
        rows[0].id, max(row.version for row in rows), b"[" + b",".join(row.row or b"" for row in rows) + b"]"
    )


def _spelled(value: Any, least: float) -> Any:
    """A float with Postgres's digits and exponent; what is none stays as it is."""
    if isinstance(value, list):
        return [_spelled(each, least) for each in value]
    if not isinstance(value, float):
        return value
    text = repr(value)
    if "e" not in text and abs(value) >= least:
        digits = text.removesuffix(".0").replace(".", "").strip("-0")
        text = f"{value:.{len(digits) - 1}e}"
    return orjson.Fragment(text)

"""Decodes records of a table's topic into Arrow record batches. Pure; the hot loop of the data source.

A record whose values have the JSON types of the table's columns, as nearly all have, is decoded once, by a decoder that
is made for the table. If one record of a batch does not fit (its table had another type then), the whole batch is
decoded again, value by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from cdc.errors import RefusedError
from sinks.typed_columns import STRING, element_type
from spark_jobs.source.arrow_columns import arrow_array, arrow_type, text_of
from spark_jobs.source.columns import KEY, OP, VERSION, SourceColumn

#: The key, the version (the header `v`) and the value; the value of a tombstone is None.
RawRecord = tuple[bytes, bytes, bytes | None]
_DELETE: Final = "d"
_TRUNCATE: Final = "t"
_NULL: Final = msgspec.Raw(b"null")
_PLAIN: Final[dict[str, Any]] = {
    "int": int,
    "bigint": int,
    "float": float | str,
    "double": float | str,
    "boolean": bool,
}


class _Op(msgspec.Struct):
    op: str


_decode_op: Final = msgspec.json.Decoder(_Op).decode


def op_of(value: bytes) -> str:
    """Return the operation of an event."""
    return _decode_op(value).op


class _Form(NamedTuple):
    """Decoders that are made for a table: of events, and of keys."""

    event: Any
    key: Any
    #: A row without values.
    empty: Any
    #: The types of the fields.
    types: list[Any]


class RecordBatches:
    """Makes record batches with these columns. `deletes`: rows for tombstones and TRUNCATE markers as well."""

    def __init__(self, topic: str, columns: Sequence[SourceColumn], *, deletes: bool) -> None:
        self._topic = topic
        self._columns = columns
        self._read = [column for column in columns if column.source]
        self._getters = [attrgetter(f"c{place}") for place in range(len(self._read))]
        self._deletes = deletes
        self._schema = pa.schema([(column.name, arrow_type(column.type)) for column in columns])
        self._usual = _form([_json_type(column) for column in self._read], self._read)
        self._any = _form([msgspec.Raw] * len(self._read), self._read)

    def batch(self, records: Iterable[RawRecord]) -> pa.RecordBatch:
        """Return the rows of these records. A delete's row comes from its tombstone, which follows every `d` event."""
        records = list(records)
        try:
            return self._batch(records, self._usual)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return self._batch(records, self._any)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise RefusedError(
                f"{self._topic}: a record that is not an event. A program other than Tailrace writes to this topic.",
                remedy="Stop that program, then run: tailrace audit --topic",
            ) from None

    def _batch(self, records: Iterable[RawRecord], form: _Form) -> pa.RecordBatch:
        keys: list[str | None] = []
        versions, ops, rows = [], [], []
        decode, decode_key, deletes = form.event, form.key, self._deletes
        for key, stamp, value in records:
            if value is None:
                if not deletes:
                    continue
                op, row = _DELETE, decode_key(key)
            else:
                event = decode(value)
                op, row = event.op, event.after
                if row is None:
                    if op != _TRUNCATE or not deletes:
                        self._refuse_rowless(op)
                        continue
                    row = form.empty
            keys.append(None if op == _TRUNCATE else key.decode())
            versions.append(stamp.decode())
            ops.append(op)
            rows.append(row)
        own = {KEY: keys, VERSION: versions, OP: ops}
        arrays = []
        place = 0
        for column in self._columns:
            if not column.source:
                arrays.append(pa.array(own[column.name], pa.string()))
                continue
            values = list(map(self._getters[place], rows))
            if form.types[place] is msgspec.Raw:
                values = list(map(text_of, values))
            arrays.append(arrow_array(column.type, values))
            place += 1
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refuse_rowless(self, op: str) -> None:
        if op not in (_DELETE, _TRUNCATE):
            raise RefusedError(
                f"{self._topic}: an event without a row.",
                remedy="Find the rows that it is about: tailrace audit --topic",
            )


def _form(types: list[Any], columns: Sequence[SourceColumn]) -> _Form:
    fields = [
        (f"c{place}", *_field(kind, column.source))
        for place, (kind, column) in enumerate(zip(types, columns, strict=True))
    ]
    row = msgspec.defstruct("Row", fields, gc=False)
    event = msgspec.defstruct("Event", [("op", str), ("after", row | None)], gc=False)
    return _Form(msgspec.json.Decoder(event).decode, msgspec.json.Decoder(row).decode, row(), types)


def _field(kind: Any, name: str) -> tuple[Any, Any]:
    """Return a field's type and definition. A record that was written before the column was added lacks the field."""
    if kind is msgspec.Raw:
        return kind, msgspec.field(name=name, default=_NULL)
    return kind | None, msgspec.field(name=name, default=None)


def _json_type(column: SourceColumn) -> Any:
    """Return the type that the column's values usually have in JSON; Raw if they may have several."""
    element = element_type(column.type)
    if element is not None:
        kind: Any = _PLAIN.get(element, str) | None
        return list[kind]
    if column.type == STRING and not column.is_text:
        return msgspec.Raw
    return _PLAIN.get(column.type, str)

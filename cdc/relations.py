"""A table as capture sees it: how its rows and keys become JSON, compiled once per Relation message.

Two ways give the same bytes: `read_row` straight from a message, for the usual whole row; `encode_row` and
`encode_key` from decoded values, for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from cdc.errors import ProtocolError, RefusedError
from cdc.messages import UNCHANGED, Relation, Value
from cdc.row_reader import MALFORMED, compile_row_reader
from cdc.values import Encode, TypeInfo, encoder_for


class Table:
    """One published table at one state of its columns."""

    __slots__ = (
        "_encoders",
        "_key_encoders",
        "_key_template",
        "_template",
        "deferrable_key",
        "key_indexes",
        "key_names",
        "name",
        "read_row",
        "relation",
        "topic",
        "type_names",
    )

    def __init__(
        self,
        relation: Relation,
        *,
        topic: str,
        key_names: Sequence[str],
        deferrable_key: bool,
        types: Mapping[int, TypeInfo],
    ) -> None:
        self.relation = relation
        self.name = f"{relation.schema}.{relation.table}"
        self.topic = topic
        self.key_names = tuple(key_names)
        self.deferrable_key = deferrable_key
        self.type_names = tuple(types[column.type_oid].name for column in relation.columns)
        self._encoders: list[Encode] = [
            encoder_for(types[column.type_oid], column.type_modifier) for column in relation.columns
        ]
        self._template = _object_template([column.name for column in relation.columns])
        self.key_indexes = _key_indexes(relation, self.key_names)
        self._key_encoders = [self._encoders[index] for index in self.key_indexes]
        self._key_template = _object_template(self.key_names)
        self.read_row = compile_row_reader(self._encoders, self._template, self.key_indexes, self._key_template)

    def encode_row(self, values: Sequence[Value]) -> bytes:
        """The row as a JSON object. Must not be given a row with UNCHANGED values: fill them first."""
        try:
            return self._template % tuple(
                [
                    b"null" if value is None else encode(value)  # type: ignore[arg-type]  # UNCHANGED: see docstring
                    for encode, value in zip(self._encoders, values, strict=True)
                ]
            )
        except MALFORMED as error:
            raise self._malformed(error) from None

    def encode_key(self, values: Sequence[Value]) -> bytes:
        """The primary key as a JSON object, columns in key order: the record's key, so its bytes must never vary."""
        try:
            return self._key_template % tuple(
                [
                    encode(values[index])  # type: ignore[arg-type]  # a key column is never NULL, never left out
                    for encode, index in zip(self._key_encoders, self.key_indexes, strict=True)
                ]
            )
        except MALFORMED as error:
            raise self._malformed(error) from None

    def key_values(self, values: Sequence[Value]) -> tuple[bytes, ...]:
        """The primary key as Postgres text, for a query."""
        return tuple([values[index] for index in self.key_indexes])  # type: ignore[misc]  # as in encode_key

    def _malformed(self, error: Exception) -> ProtocolError:
        """Without the value, and without the error that would show it."""
        return ProtocolError(
            f"A row of {self.name} is not what its columns promise ({type(error).__name__}).",
            remedy="Is the database's encoding SQL_ASCII, with text that is not UTF-8?",
        )


def unchanged_indexes(values: Sequence[Value]) -> list[int]:
    """Where an update left a TOASTed column out."""
    return [index for index, value in enumerate(values) if value is UNCHANGED]


def _key_indexes(relation: Relation, key_names: Sequence[str]) -> tuple[int, ...]:
    """Where the key's columns stand; refused where old rows would not carry them all."""
    places = {column.name: index for index, column in enumerate(relation.columns) if column.in_key}
    missing = [name for name in key_names if name not in places]
    if missing or not key_names:
        table = f"{relation.schema}.{relation.table}"
        what = f"its replica identity lacks the key column {missing[0]!r}" if missing else "it has no primary key"
        raise RefusedError(
            f"Table {table} cannot be captured: {what}.",
            remedy=f"Give it a primary key and run ALTER TABLE {table} REPLICA IDENTITY DEFAULT (or FULL).",
        )
    return tuple(places[name] for name in key_names)


def _object_template(names: Sequence[str]) -> bytes:
    fields = b",".join(orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in names)
    return b"{" + fields + b"}"

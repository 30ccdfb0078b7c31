"""Encodes a table's rows and keys as JSON. Built once per Relation message.

There are two ways with the same output. `run` converts messages directly, if they contain whole rows, as most do.
`encode_row` and `encode_key` take decoded values, for all other messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cdc.config.tables import Mask, MaskKind
from cdc.encoding.masks import mask_encoder, refuse_unfit_mask
from cdc.encoding.row_runs import Member, object_template, row_run
from cdc.encoding.values import MALFORMED, Encode, TypeInfo, encoder_for
from cdc.errors import ProtocolError, RefusedError
from cdc.pgoutput.messages import UNCHANGED, Relation, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is published of a table: name, topic, key, columns and masks.

    A partition is published under the name of its partitioned table.
    """

    schema: str
    table: str
    topic: str
    key: tuple[str, ...]
    deferrable_key: bool = False
    columns: tuple[str, ...] | None = None  # published in this order; None: the columns of the Relation message
    masks: Mapping[str, Mask] = field(default_factory=dict)
    salt: bytes = b""

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class Layout(NamedTuple):
    """A table's encoders and column indexes, for code that reads rows in another format (COPY lines of a snapshot)."""

    encoders: tuple[Encode, ...]
    row_indexes: tuple[int, ...]
    key_indexes: tuple[int, ...]


class TableEncoder:
    """Encoder of one published table with one set of columns."""

    __slots__ = (
        "_encoders",
        "_key_template",
        "_row_indexes",
        "_row_template",
        "_toastless",
        "key_indexes",
        "relation",
        "run",
        "shape",
        "topic",
        "types",
    )

    def __init__(self, relation: Relation, shape: Shape, types: Mapping[int, TypeInfo]) -> None:
        self.relation = relation
        self.shape = shape
        self.topic = shape.topic
        self.types = tuple(types[column.type_oid] for column in relation.columns)
        self._encoders = _encoders(relation, shape, types)
        self.key_indexes = _key_indexes(relation, shape)
        self._row_indexes = _row_indexes(relation, shape)
        self._toastless = _without_value(relation, shape, self._row_indexes)
        names = [column.name for column in relation.columns]
        self._row_template = object_template([names[index] for index in self._row_indexes])
        self._key_template = object_template(shape.key)
        row, key = ([Member(i, names[i]) for i in indexes] for indexes in (self._row_indexes, self.key_indexes))
        self.run = row_run(self._encoders, row, key)

    @property
    def layout(self) -> Layout:
        return Layout(tuple(self._encoders), self._row_indexes, self.key_indexes)

    def columns(self) -> list[tuple[str, str, int]]:
        """Return name, type and type modifier of each published column, in order. A masked column has type text.

        An exception is the mask `null`, which keeps the column's type.
        """
        described = []
        for index in self._row_indexes:
            column = self.relation.columns[index]
            is_text = column.name in self.shape.masks and self.shape.masks[column.name].kind is not MaskKind.NULL
            name, modifier = ("text", -1) if is_text else (self.types[index].name, column.type_modifier)
            described.append((column.name, name, modifier))
        return described

    def encode_row(self, values: Sequence[Value]) -> bytes:
        """Return the row as a JSON object. The caller has filled in the values at `missing_toast_indexes`."""
        try:
            if len(values) != len(self._encoders):
                raise ValueError("wrong number of columns")
            return self._row_template % tuple([self._encode(index, values[index]) for index in self._row_indexes])
        except MALFORMED as error:
            raise self._malformed(error) from None

    def encode_key(self, values: Sequence[Value]) -> bytes:
        """Return the primary key as a JSON object with columns in key order.

        It is the Kafka record's key, so the same key must always give the same bytes.
        """
        try:
            # A key column is never NULL, and pgoutput never leaves it out.
            return self._key_template % tuple([self._encoders[index](values[index]) for index in self.key_indexes])  # type: ignore[arg-type]
        except MALFORMED as error:
            raise self._malformed(error) from None

    def key_values(self, values: Sequence[Value]) -> tuple[bytes, ...]:
        """Return the primary key's values as Postgres text, for a query."""
        return tuple([values[index] for index in self.key_indexes])  # type: ignore[misc]  # as in encode_key

    def missing_toast_indexes(self, values: Sequence[Value]) -> list[int]:
        """Return the indexes of unchanged TOASTed values that an update left out and the published row needs."""
        if UNCHANGED not in values:
            return []
        return [index for index, value in enumerate(values) if value is UNCHANGED and index not in self._toastless]

    def _encode(self, index: int, value: Value) -> bytes:
        if value is None:
            return b"null"
        if value is UNCHANGED:
            if index not in self._toastless:
                raise ValueError("missing TOASTed value")
            value = b""  # not published, or replaced by a mask that does not depend on the value
        return self._encoders[index](value)

    def _malformed(self, error: Exception) -> ProtocolError:
        """Return the error to raise. It contains neither the value nor the original error, which may contain it."""
        return ProtocolError(
            f"A row of {self.shape} has a value that does not match its column's type ({type(error).__name__}).",
            remedy="Check the database's encoding: with SQL_ASCII, all text must be valid UTF-8.",
        )


def _encoders(relation: Relation, shape: Shape, types: Mapping[int, TypeInfo]) -> list[Encode]:
    return [
        mask_encoder(shape.masks[column.name], shape.salt)
        if column.name in shape.masks
        else encoder_for(types[column.type_oid], column.type_modifier)
        for column in relation.columns
    ]


def _row_indexes(relation: Relation, shape: Shape) -> tuple[int, ...]:
    places = {column.name: index for index, column in enumerate(relation.columns)}
    wanted = places if shape.columns is None else shape.columns
    return tuple(places[name] for name in wanted if name in places)


def _without_value(relation: Relation, shape: Shape, row_indexes: Sequence[int]) -> frozenset[int]:
    """Return the columns whose value is not needed: not published, or masked with NULL or a fixed text."""
    replaced = {name for name, mask in shape.masks.items() if mask.kind is not MaskKind.HASH}
    return frozenset(
        index for index, column in enumerate(relation.columns) if index not in row_indexes or column.name in replaced
    )


def _key_indexes(relation: Relation, shape: Shape) -> tuple[int, ...]:
    """Return the indexes of the key's columns. Refuses a table whose old rows would not contain all of them."""
    # Without a replica identity, only inserts are possible, and they have every column.
    has_identity = any(column.in_key for column in relation.columns)
    places = {column.name: index for index, column in enumerate(relation.columns) if column.in_key or not has_identity}
    missing = [name for name in shape.key if name not in places]
    if missing or not shape.key:
        what = f"its replica identity lacks the key column {missing[0]!r}" if missing else "it has no primary key"
        raise RefusedError(
            f"Table {shape} cannot be captured: {what}.",
            remedy=f"Give it a primary key and run ALTER TABLE {relation.schema}.{relation.table} "
            "REPLICA IDENTITY DEFAULT (or FULL). Changes that were written before stay in the WAL without their key. "
            "If capture still refuses the table, run: tailrace recover.",
        )
    for name in shape.key:
        if name in shape.masks:
            refuse_unfit_mask(shape, name, shape.masks[name])
    return tuple(places[name] for name in shape.key)

"""Reads rows of a table by the keys of their Kafka records: converts a key to Postgres input and selects the row."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
import orjson
import psycopg
from psycopg import sql

from cdc.encoding.values import TypeInfo
from cdc.errors import TransientError
from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import BlockRange
from cdc.snapshot.source_reader import Readable, copy_out, lines, lock
from cdc.snapshot.table_description import DescribedTable

_KEYS_AT_ONCE = 1000

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_ISO = re.compile(r"([+-]?\d{4,})(-\d\d-\d\d)(?:T([\d:.]+))?Z")
_BARE = frozenset({"int2", "int4", "int8", "oid", "bool", "float4", "float8"})
#: Types whose JSON form cannot be converted back to Postgres input without more information, or that are unlikely keys.
_UNREADABLE = frozenset({"bit", "interval", "time", "timetz", "point", "hstore", "vector", "halfvec", "money"})


def rows_by_key(
    connection: psycopg.Connection[Any], table: DescribedTable, keys: Collection[bytes]
) -> dict[bytes, bytes]:
    """Return the rows in the snapshot's encoding, by record key. Keys that the source does not have are left out."""
    found: dict[bytes, bytes] = {}
    if not keys:
        return found
    for leaf in table.leaves:
        encoder = LineEncoder(table.table(leaf.relation), b"", b"")
        readable = lock(connection, table, leaf, encoder.columns)
        if not isinstance(readable, Readable):
            raise TransientError(f"{table.shape} cannot be read at the moment: {readable}.")
        wanted = set(keys)
        for block in _lines(connection, table, readable, encoder, sorted(wanted)):
            found.update((key, row) for key, row in encoder.encode(block) if key in wanted)
    return found


def _lines(
    connection: psycopg.Connection[Any],
    table: DescribedTable,
    readable: Readable,
    encoder: LineEncoder,
    keys: Sequence[bytes],
) -> Iterator[list[bytes]]:
    """Yields lines of the rows, read by the key's index, or by a full scan if keys cannot be converted (masked)."""
    columns = _readable_key(table)
    texts = [] if columns is None else [each for key in keys if (each := _key_texts(key, columns)) is not None]
    try:
        if columns is not None:
            names = [name for name, _ in columns]
            connection.execute("set local enable_indexscan = on")
            with connection.transaction():  # a savepoint
                found = [
                    block
                    for start in range(0, len(texts), _KEYS_AT_ONCE)
                    for block in copy_out(
                        connection, _by_key(readable, encoder, names, texts[start : start + _KEYS_AT_ONCE])
                    )
                ]
            yield from found
            return
    except (psycopg.DataError, psycopg.errors.UndefinedFunction):
        pass  # an invented key is no value of the column's type, or the type's schema is not in our search path
    everything = BlockRange(table=table.oid, relation=readable.leaf.relation.oid, first_block=0, end_block=None)
    yield from lines(connection, readable, everything, encoder.columns)


def _by_key(
    readable: Readable, encoder: LineEncoder, names: Sequence[str], texts: Sequence[Sequence[str]]
) -> sql.Composed:
    """Return the COPY query for these keys. It uses untyped literals, since COPY takes no parameters."""
    values = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, each))) for each in texts)
    key = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, names)))
    conditions = [sql.SQL("{} in ({})").format(key, values)]
    if readable.leaf.row_filter is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(readable.leaf.row_filter)))
    return sql.SQL("copy (select {} from only {} where {}) to stdout").format(
        sql.SQL(", ").join(map(sql.Identifier, encoder.columns)),
        sql.SQL(readable.name),
        sql.SQL(" and ").join(conditions),
    )


def _readable_key(table: DescribedTable) -> list[tuple[str, Callable[[str], str]]] | None:
    """Return each key column with the function that converts its value back to Postgres input.

    None if a column is masked or has a type that cannot be converted back.
    """
    columns = {column.name: column for column in table.relation.columns}
    found = []
    for name in table.shape.key:
        type_info = _base(table.types[columns[name].type_oid])
        plain = type_info.name.rpartition(".")[2]
        if name in table.shape.masks or type_info.kind == "array" or plain in _UNREADABLE:
            return None
        found.append((name, _BACK.get(plain, str)))
    return found


def _key_texts(key: bytes, columns: Sequence[tuple[str, Callable[[str], str]]]) -> list[str] | None:
    """Return the Postgres input of each key column, or None for a key that does not belong to this table."""
    try:
        members = _decode(key)
        return [back(_text(bytes(members[name]))) for name, back in columns]
    except (KeyError, ValueError, msgspec.DecodeError):
        return None


def key_of_id(table: DescribedTable, row_id: str) -> bytes | None:
    """Return the record key for a store's id, or None if the id does not contain it (a hash, or a masked key)."""
    columns = _readable_key(table)
    if columns is None or row_id.startswith("sha256:"):
        return None
    try:
        texts = [row_id] if len(columns) == 1 else msgspec.json.decode(row_id, type=list[str])
    except msgspec.DecodeError:
        return None
    if len(texts) != len(columns):
        return None
    types = {column.name: _base(table.types[column.type_oid]).name for column in table.relation.columns}
    members = [
        orjson.dumps(name) + b":" + (text.encode() if _is_bare(types[name], text) else orjson.dumps(text))
        for (name, _), text in zip(columns, texts, strict=True)
    ]
    return b"{" + b",".join(members) + b"}"


def _is_bare(type_name: str, text: str) -> bool:
    """Whether the value has no quotes in JSON: numbers and booleans, except NaN and infinity."""
    return type_name in _BARE and text not in ("NaN", "Infinity", "-Infinity")


def _text(value: bytes) -> str:
    return _decode_text(value) if value[:1] == b'"' else value.decode()


def _base(type_info: TypeInfo) -> TypeInfo:
    while type_info.kind == "domain" and type_info.base is not None:
        type_info = type_info.base
    return type_info


def _calendar(value: str) -> str:
    match = _ISO.fullmatch(value)
    if match is None:
        return value  # infinity
    year = int(match[1])
    date = f"{year if year > 0 else 1 - year:04d}{match[2]}"
    return date + (f" {match[3]}+00" if match[3] else "") + (" BC" if year <= 0 else "")


_BACK: dict[str, Callable[[str], str]] = {
    "bytea": lambda value: "\\x" + base64.b64decode(value).hex(),
    "date": _calendar,
    "timestamp": _calendar,
    "timestamptz": _calendar,
}

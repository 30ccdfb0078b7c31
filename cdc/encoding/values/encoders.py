"""Chooses the encoder of a column. Only this module maps types to their JSON forms (docs/reference/types.md)."""

from __future__ import annotations

from cdc.encoding.values import scalars, times
from cdc.encoding.values.arrays import array
from cdc.encoding.values.scalars import IDENTITY, QUOTE
from cdc.encoding.values.types import Encode, TypeInfo

_MAX_DIGITS = 6  # fractional digits of seconds; also those of a column without a typmod

_BUILT_IN: dict[str, Encode] = {
    "int2": IDENTITY,
    "int4": IDENTITY,
    "int8": IDENTITY,
    "oid": IDENTITY,
    "bool": scalars.boolean,
    "float4": scalars.floating,
    "float8": scalars.floating,
    "numeric": QUOTE,
    "uuid": QUOTE,
    "bytea": scalars.binary,
    "date": times.date,
    "time": times.time,
    "timetz": times.timetz,
    "timestamp": times.timestamp,
    "interval": times.interval,
    "money": scalars.money,
    "point": scalars.point,
    "varbit": QUOTE,
    "inet": QUOTE,
    "cidr": QUOTE,
    "macaddr": QUOTE,
    "macaddr8": QUOTE,
    "int4range": QUOTE,
    "int8range": QUOTE,
    "numrange": QUOTE,
    "pg_lsn": QUOTE,
    "xid": QUOTE,
    "xid8": QUOTE,
    "cid": QUOTE,
    "tid": QUOTE,
}

# pgvector's text of a dense vector is a JSON array, and pgvector allows neither NaN nor infinity.
_OF_EXTENSIONS: dict[tuple[str, str], Encode] = {
    ("hstore", "hstore"): scalars.hstore,
    ("vector", "vector"): IDENTITY,
    ("vector", "halfvec"): IDENTITY,
}


def encoder_for(type: TypeInfo, typmod: int) -> Encode:  # noqa: A002 - Postgres's own word
    """Return the encoder of a column of this type. `typmod` is the column's type modifier, -1 if it has none."""
    if type.base is not None and type.kind == "array":
        return array(encoder_for(type.base, typmod), type.delimiter)
    if type.base is not None and type.kind == "domain":
        return encoder_for(type.base, type.base_typmod)
    if type.extension is not None:
        return _OF_EXTENSIONS.get((type.extension, type.name.rpartition(".")[2]), scalars.text)
    return scalars.text if "." in type.name else _built_in(type.name, typmod)


def _built_in(name: str, typmod: int) -> Encode:
    if name == "timestamptz":
        return times.timestamptz(_MAX_DIGITS if typmod < 0 else typmod)
    if name == "bit":
        return scalars.bits(typmod)
    return _BUILT_IN.get(name, scalars.text)

"""Names of aliases, indices and fields in Elasticsearch. Pure.

`shop.public.orders` is what readers search, an alias. `shop.public.orders-g3` is the index of generation 3, and
`shop.public.orders-g3-wTIME` an alias of just that index for writers: a bulk request demands an alias, so a write to a
generation that was dropped fails, where one to an index would bring it back with guessed mappings; and since it has the
time when the generation was made, it fails as well where a new one has got the old number. `-g` is no escape of ours
(those are hexadecimal), so no table's name looks like a generation.
"""

from __future__ import annotations

import re
from typing import Final

from cdc import names
from cdc.stores.contract import Generation, TableSchema

#: Our own field in every document; columns cannot have it, see `field_name`.
OWN: Final = "_tailrace"

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_GENERATION = re.compile(r"(.+)-g([0-9]+)")
_ODD_BYTES = re.compile(rb"[^A-Za-z0-9_]")


def reader_alias(prefix: str, table: TableSchema) -> str:
    return names.index_name(prefix, table.schema, table.table)


def index_of(prefix: str, table: TableSchema, number: int) -> str:
    return f"{reader_alias(prefix, table)}-g{number}"


def writer_alias(prefix: str, table: TableSchema, generation: Generation) -> str:
    return writers_of(index_of(prefix, table, generation.number), generation)


def writers_of(index: str, generation: Generation) -> str:
    """The alias through which an index of the generation is written."""
    return f"{index}-w{_short(generation.created_ms)}"


def own_alias(prefix: str) -> str:
    """Points at the serving generation's own index, so that one change of aliases switches everything."""
    return f"{prefix}.__tailrace"


def own_index(prefix: str, number: int) -> str:
    """Holds the generation's position and TRUNCATE markers. One dot, as no table's index has."""
    return f"{own_alias(prefix)}-g{number}"


def own_writer_alias(prefix: str, generation: Generation) -> str:
    return writers_of(own_index(prefix, generation.number), generation)


def split_generation(index: str) -> tuple[str, int] | None:
    """The alias and the number that an index of ours belongs to."""
    match = _GENERATION.fullmatch(index)
    return None if match is None else (match[1], int(match[2]))


def field_name(column: str) -> str:
    """A column's name, unless Elasticsearch would read it as something else.

    A dot would make an object, a leading `_` may be one of its own fields or ours, blanks are refused: such a name gets
    `_` in front, and bytes outside `[A-Za-z0-9_]` become `-hh`.
    """
    if column.strip() and "." not in column and not column.startswith("_"):
        return column
    return "_" + _ODD_BYTES.sub(lambda byte: b"-%02x" % ord(byte[0]), column.encode()).decode("ascii")


def _short(number: int) -> str:
    """In base 36: a time in milliseconds has eight digits, and an index's name has room for few more."""
    digits = ""
    while number:
        number, last = divmod(number, 36)
        digits = _DIGITS[last] + digits
    return digits or "0"

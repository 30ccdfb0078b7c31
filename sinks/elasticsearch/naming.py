"""Names of aliases, indices and fields in Elasticsearch. Pure: no I/O.

- `shop.public.orders` is the reader alias, which readers search.
- `shop.public.orders-g3` is the index of generation 3.
- `shop.public.orders-g3-wTIME` is the writer alias, which points at that index only.

A bulk request requires an alias as its target. So a write to a dropped generation fails, while a write to an index name
would create the index again with guessed mappings. The writer alias contains the time at which the generation was
created. So a write also fails if a newer generation has the same number. `-g` is not one of Tailrace's escape sequences
(those are hexadecimal), so no table's name can look like the name of a generation.
"""

from __future__ import annotations

import re
from typing import Final

from cdc import names
from cdc.stores.contract import Generation, TableSchema

#: The field that Tailrace adds to every document. No column can have this name, see `field_name`.
OWN: Final = "_tailrace"

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_GENERATION = re.compile(r"(.+)-g([0-9]+)")
_ODD_BYTES = re.compile(rb"[^A-Za-z0-9_]")


def reader_alias(prefix: str, table: TableSchema) -> str:
    """Return the alias that readers search."""
    return names.index_name(prefix, table.schema, table.table)


def index_of(prefix: str, table: TableSchema, number: int) -> str:
    """Return the name of a table's index in a generation."""
    return f"{reader_alias(prefix, table)}-g{number}"


def writer_alias(prefix: str, table: TableSchema, generation: Generation) -> str:
    """Return the alias through which writers write a table."""
    return writers_of(index_of(prefix, table, generation.number), generation)


def writers_of(index: str, generation: Generation) -> str:
    """Return the writer alias of an index of the generation."""
    return f"{index}-w{_short(generation.created_ms)}"


def own_alias(prefix: str) -> str:
    """Return the alias of the serving generation's state index. One alias request switches it with all others."""
    return f"{prefix}.__tailrace"


def own_index(prefix: str, number: int) -> str:
    """Return the name of a generation's state index, which holds its position and TRUNCATE markers.

    The name has one dot. The name of a table's index has more.
    """
    return f"{own_alias(prefix)}-g{number}"


def own_writer_alias(prefix: str, generation: Generation) -> str:
    """Return the writer alias of a generation's state index."""
    return writers_of(own_index(prefix, generation.number), generation)


def split_generation(index: str) -> tuple[str, int] | None:
    """Return the reader alias and the generation's number of an index. None: not an index of Tailrace."""
    match = _GENERATION.fullmatch(index)
    return None if match is None else (match[1], int(match[2]))


def field_name(column: str) -> str:
    """Return the field's name for a column: the column's name, unless Elasticsearch would misread it.

    A dot would create an object. A leading `_` may denote a field of Elasticsearch or of Tailrace. Elasticsearch
    rejects a blank name. Such a name gets the prefix `_`, and bytes outside `[A-Za-z0-9_]` become `-hh`.
    """
    if column.strip() and "." not in column and not column.startswith("_"):
        return column
    return "_" + _ODD_BYTES.sub(lambda byte: b"-%02x" % ord(byte[0]), column.encode()).decode("ascii")


def _short(number: int) -> str:
    """Return a number in base 36, which is short: a time in milliseconds has eight digits. Index names are limited."""
    digits = ""
    while number:
        number, last = divmod(number, 36)
        digits = _DIGITS[last] + digits
    return digits or "0"

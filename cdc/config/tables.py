"""Names of tables and columns in the config (`public.orders`, `public.*`, `public."Odd.Name"`), and masks.

Identifiers are written as in SQL. An unquoted capital is an error instead of being folded to lower case, because
`public.Orders` could mean either of two tables. Parse errors do not quote the text; the config reader adds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

_PART = re.compile(r'"((?:[^"]|"")*)"|([^".*\s]+)')
_BARE = re.compile(r"[a-z_\u0080-\U0010ffff][a-z0-9_$\u0080-\U0010ffff]*")
_IDENTIFIER_BYTES = 63  # NAMEDATALEN - 1: Postgres truncates longer names


def quote_identifier(name: str) -> str:
    """Return `name` as SQL writes it, quoted only where necessary."""
    if _BARE.fullmatch(name) and name == name.lower() and not any(map(str.isspace, name)):
        return name
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class TableSelector:
    """Selects one table, or every table of the schema if `table` is None."""

    schema: str
    table: str | None

    @classmethod
    def parse(cls, text: str) -> TableSelector:
        if text.endswith(".*"):
            parts = _split(text[:-2])
            if len(parts) == 1:
                return cls(parts[0], None)
        else:
            parts = _split(text)
            if len(parts) == 2:
                return cls(parts[0], parts[1])
        raise ValueError("expected schema.table or schema.*")

    def matches(self, schema: str, table: str) -> bool:
        return schema == self.schema and self.table in (None, table)

    def __str__(self) -> str:
        table = "*" if self.table is None else quote_identifier(self.table)
        return f"{quote_identifier(self.schema)}.{table}"


class ColumnName(NamedTuple):
    schema: str
    table: str
    column: str

    @classmethod
    def parse(cls, text: str) -> ColumnName:
        parts = _split(text)
        if len(parts) != 3:
            raise ValueError('expected "schema.table.column", all of it in quotes')
        return cls(*parts)

    def __str__(self) -> str:
        return ".".join(map(quote_identifier, self))


class TableName(NamedTuple):
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        parts = _split(text)
        if len(parts) != 2:
            raise ValueError('expected "schema.table", all of it in quotes')
        return cls(*parts)

    def __str__(self) -> str:
        return ".".join(map(quote_identifier, self))


#: In place of a column list: all columns. It confirms that a column list was removed on purpose.
ALL_COLUMNS = ("*",)


class MaskKind(Enum):
    HASH = "hash"
    NULL = "null"
    FIXED = "fixed"
    #: No mask. It confirms that a mask was removed on purpose.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Mask:
    """What Tailrace publishes instead of a column's value. `text` is used by FIXED only."""

    kind: MaskKind
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Mask:
        if text in ("hash", "null", "none"):
            return cls(MaskKind(text))
        if text.startswith("fixed:"):
            return cls(MaskKind.FIXED, text.removeprefix("fixed:"))
        raise ValueError("expected hash, null, fixed:TEXT or none")

    def __str__(self) -> str:
        return f"fixed:{self.text}" if self.kind is MaskKind.FIXED else self.kind.value


def _split(text: str) -> list[str]:
    """Return the identifiers of a dotted name, without quotes."""
    parts, at = [], 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise ValueError('is not a dotted name; quote odd identifiers as in SQL: public."Odd.Name"')
        parts.append(_identifier(match[1], match[2]))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            raise ValueError('is not a dotted name; quote odd identifiers as in SQL: public."Odd.Name"')
        at += 1


def _identifier(quoted: str | None, bare: str | None) -> str:
    if bare is not None:
        if bare != bare.lower():
            raise ValueError('has an unquoted capital: use lower case, or quotes as in SQL: public."Orders"')
        if _BARE.fullmatch(bare) is None:
            raise ValueError('has characters that need quotes, as in SQL: public."Odd.Name"')
        name = bare
    else:
        name = (quoted or "").replace('""', '"')
    if not name or "\0" in name:
        raise ValueError("has an empty identifier or a zero byte in one")
    if len(name.encode()) > _IDENTIFIER_BYTES:
        raise ValueError(f"has an identifier of more than {_IDENTIFIER_BYTES} bytes, which Postgres would truncate")
    return name

"""What a Postgres type is, as far as its JSON form depends on it. Facts only: no I/O, no encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Encode = Callable[[bytes], bytes]
"""Postgres text (never NULL) to a JSON fragment; both UTF-8."""

Kind = Literal["base", "enum", "domain", "composite", "range", "multirange", "array", "pseudo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """One row of pg_type. `name` is schema-qualified and quoted as SQL needs it, bare inside pg_catalog."""

    oid: int
    name: str
    kind: Kind
    base: TypeInfo | None = None  # an array's element, a domain's base type
    base_typmod: int = -1  # what a domain fixes; its columns carry no typmod of their own
    delimiter: str = ","  # between an array's elements
    extension: str | None = None

"""Which tables, columns and rows a store receives: `tables`, and `[stores.NAME.shape."schema.table"]`.

Expressions are Spark SQL. They are kept as text here; `spark_jobs.shape` parses them (docs/guides/shaping.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cdc.config.settings import Problem, about, not_empty
from cdc.config.tables import TableName, TableSelector


def _not_blank(text: str) -> str | None:
    return None if text.strip() else "must not be empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The shape of one table in one store. `columns` None: all columns, also those added later."""

    columns: tuple[str, ...] | None = field(
        default=None, metadata=about("Columns that the store receives besides the key; default: all")
    )
    where: str | None = field(
        default=None,
        metadata=about(
            "Rows that the store holds, as a Spark SQL expression; a row that no longer matches is deleted", _not_blank
        ),
    )
    select: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Computed fields, each a Spark SQL expression", names=not_empty)
    )

    def problems(self) -> Iterator[Problem]:
        if self.columns is None and self.where is None and not self.select:
            yield "", "needs `columns`, `where` or `select`"
        for name, expression in self.select.items():
            if _not_blank(expression) is not None:
                yield "select", f"`{name}` must not be empty"

    def text(self) -> str:
        """Return the shape as canonical JSON. A store keeps it, to detect that the config's shape has changed."""
        parts = {
            "columns": None if self.columns is None else sorted(self.columns),
            "where": self.where,
            "select": dict(self.select),
        }
        said = {name: part for name, part in parts.items() if part is not None and part != {}}
        return json.dumps(said, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> TableShape:
        parts = json.loads(text)
        columns = parts.get("columns")
        return cls(
            columns=None if columns is None else tuple(columns),
            where=parts.get("where"),
            select=parts.get("select", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """Keys of every kind of store: which tables it receives, and in which form."""

    tables: tuple[TableSelector, ...] = field(
        default=(), metadata=about("Tables that the store receives: `schema.table` or `schema.*`; empty: all")
    )
    shape: Mapping[TableName, TableShape] = field(
        default_factory=dict, metadata=about("Which columns and rows of a table the store receives, and in which form")
    )

    def gets(self, schema: str, table: str) -> bool:
        """Whether the store receives this table."""
        return not self.tables or any(selector.matches(schema, table) for selector in self.tables)

    def shape_of(self, schema: str, table: str) -> TableShape | None:
        return self.shape.get(TableName(schema, table))


def shape_problems(store: Shaped) -> Iterator[Problem]:
    for name in store.shape:
        if not store.gets(*name):
            yield "shape", f"{name} is not among this store's `tables`"

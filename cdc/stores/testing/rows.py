"""Tables, changes and writes in few words, for tests of stores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from cdc.lsn import Version
from cdc.stores.contract import Change, Generation, Rejected, RowStore, SchemaColumn, Store, TableSchema
from cdc.stores.row_ids import row_id_of


def table(prefix: str, *columns: SchemaColumn, name: str = "orders") -> TableSchema:
    """`public.orders` with an `id` and the given columns, or a text named `note`."""
    own = columns or (SchemaColumn("note", "text", -1),)
    return TableSchema("public", name, f"{prefix}.public.{name}", ("id",), (SchemaColumn("id", "int8", -1), *own))


def change(key: Any, version: int | Version, row: dict[str, Any] | None = None, *, gone: bool = False) -> Change:
    """A row with this `id` (and more columns); `version` may be the position's eighth."""
    key_bytes = json.dumps({"id": key}, ensure_ascii=False, separators=(",", ":")).encode()
    whole = None if gone else json.dumps({"id": key, **(row or {})}, ensure_ascii=False).encode()
    number = version if isinstance(version, Version) else Version(version * 8, 1)
    return Change(row_id_of(key_bytes), key_bytes, number, whole)


def apply(store: RowStore, generation: Generation, what: TableSchema, changes: Iterable[Change]) -> list[Rejected]:
    """Write the changes with a writer of their own, as a task would."""
    with closing(store.writer_factory(generation)()) as writer:
        return writer.apply(what, list(changes))


def truncate(store: RowStore, generation: Generation, what: TableSchema, version: Version) -> int:
    """Truncate the table with a writer of its own, as the driver would."""
    with closing(store.writer_factory(generation)()) as writer:
        return writer.truncate(what, version)


def rows(store: Store, generation: Generation, what: TableSchema) -> dict[str, Any]:
    """Return the live rows as JSON values, by id."""
    return {each.id: json.loads(each.row or b"null") for each in store.contents(generation, what)}

"""Stores for tests, opened on the run's servers, with short ways to make tables and changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from cdc.config.stores import ElasticsearchConfig, RedisConfig
from cdc.lsn import Version
from cdc.secrets import Url
from cdc.stores.contract import Change, Generation, Rejected, SchemaColumn, Store, TableSchema
from cdc.stores.registry import open_store
from cdc.stores.row_ids import row_id_of

KINDS = ("elasticsearch", "redis")
#: The example of docs/guides/writing-a-sink.md.
DOCUMENTED = "sqlite"


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


def store_of(
    kind: str, address: str, prefix: str, name: str = "store", settings: Mapping[str, Any] | None = None
) -> Store:
    if kind == DOCUMENTED:
        own: Store = _documented().SqliteStore(name, SimpleNamespace(path=Path(address)), prefix)
        return own
    kinds: dict[str, Any] = {"elasticsearch": ElasticsearchConfig, "redis": RedisConfig}
    return open_store(name, kinds[kind](url=Url(address), **settings or {}), prefix)


@cache
def _documented() -> Any:
    """The module that docs/guides/writing-a-sink.md shows; known by a name, so that its factory can be pickled."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "writing-a-sink.md").read_text()
    module = ModuleType("documented_sink")
    sys.modules[module.__name__] = module
    exec(page.partition("```python\n")[2].partition("```")[0], module.__dict__)  # noqa: S102 - our own page
    return module


def apply(store: Store, generation: Generation, what: TableSchema, changes: Iterable[Change]) -> list[Rejected]:
    """Write changes with a writer of its own, as a task would."""
    writer = store.writer_factory(generation)()
    try:
        return writer.apply(what, list(changes))
    finally:
        writer.close()


def truncate(store: Store, generation: Generation, what: TableSchema, version: Version) -> int:
    writer = store.writer_factory(generation)()
    try:
        return writer.truncate(what, version)
    finally:
        writer.close()


def rows(store: Store, generation: Generation, what: TableSchema) -> dict[str, Any]:
    """Live rows as JSON values, by id."""
    return {each.id: json.loads(each.row or b"null") for each in store.contents(generation, what)}

"""The kinds of stores, found through the entry points of installed packages. Opening a store imports its kind.

A package registers a kind by its name in the group `tailrace.stores`, with a class that implements
`contract.RowStore` or `contract.TableStore`. A kind that can be audited is also in the group `tailrace.scans`, with a
class that implements `scan.RowScan` or `scan.StoreScan`. `cdc.config.stores` finds the settings of a kind.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from cdc.errors import UsageError
from cdc.stores.contract import Generation, RowStore, Store, StoreKind, TableStore
from cdc.stores.scan import ScanKind, StoreScan

_STORES = "tailrace.stores"
_SCANS = "tailrace.scans"


def is_store_kind(kind: str) -> bool:
    """Whether a store of this kind can be opened."""
    return kind in _kinds(_STORES)


def is_auditable(kind: str) -> bool:
    """Whether a store of this kind can be scanned, and so audited."""
    return kind in _kinds(_SCANS)


def is_table_kind(kind: str) -> bool:
    """Whether Spark writes the tables of stores of this kind (`contract.TableStore`). Imports the kind."""
    return is_store_kind(kind) and issubclass(_kinds(_STORES)[kind].load(), TableStore)


def spark_writing(kind: str) -> str | None:
    """Return the name of the class with which Spark writes stores of this kind. None: they are written row by row."""
    if not is_table_kind(kind):
        return None
    return cast("type[TableStore]", _kinds(_STORES)[kind].load()).spark_writing


def store_module(kind: str) -> str:
    """Return the name of the module of this kind's store. Spark's workers import it before they get tasks."""
    return _kinds(_STORES)[kind].module


def scan_module(kind: str) -> str:
    """Return the name of the module of this kind's scan."""
    return _kinds(_SCANS)[kind].module


def open_store(name: str, settings: Any, prefix: str) -> Store:
    """Return the store of `[stores.NAME]`. `prefix` is the pipeline's. The store connects when it is first used."""
    return cast("StoreKind", _load(_STORES, name, settings.kind))(name, settings, prefix)


def open_row_store(name: str, settings: Any, prefix: str) -> RowStore:
    """Return the store of `[stores.NAME]`, which must be written row by row."""
    if is_table_kind(settings.kind):
        raise UsageError(f"Store `{name}` has kind {settings.kind}: its rows cannot be written one by one.")
    return cast("RowStore", open_store(name, settings, prefix))


def open_scan(name: str, settings: Any, prefix: str, generation: Generation) -> StoreScan:
    """Return a scan of one generation of the store of `[stores.NAME]`."""
    return cast("ScanKind", _load(_SCANS, name, settings.kind))(name, settings, prefix, generation)


def _load(group: str, name: str, kind: str) -> Any:
    found = _kinds(group).get(kind)
    if found is None:
        known = ", ".join(sorted(_kinds(group))) or "none; install Tailrace again"
        raise UsageError(f"Store `{name}`: no installed package has kind {kind} in {group}.", remedy=f"Known: {known}.")
    return found.load()


@cache
def _kinds(group: str) -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=group)}

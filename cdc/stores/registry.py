"""The kinds of stores, found through the entry points of installed packages. Opening a store imports its kind.

A package registers a kind by its name in the group `tailrace.stores`, with a class that implements `contract.Store`. A
kind that can be audited is also in the group `tailrace.scans`, with a class that implements `scan.StoreScan`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from cdc.errors import UsageError
from cdc.stores.contract import Generation, Store, StoreKind
from cdc.stores.scan import ScanKind, StoreScan

_STORES = "tailrace.stores"
_SCANS = "tailrace.scans"


def is_store_kind(kind: str) -> bool:
    """Whether a store of this kind can be opened."""
    return kind in _kinds(_STORES)


def is_auditable(kind: str) -> bool:
    """Whether a store of this kind can be scanned, and so audited."""
    return kind in _kinds(_SCANS)


def store_module(kind: str) -> str:
    """Return the name of the module of this kind's store. Spark's workers import it before they get tasks."""
    return _kinds(_STORES)[kind].module


def scan_module(kind: str) -> str:
    """Return the name of the module of this kind's scan."""
    return _kinds(_SCANS)[kind].module


def open_store(name: str, settings: Any, prefix: str) -> Store:
    """Return the store of `[stores.NAME]`. `prefix` is the pipeline's. The store connects when it is first used."""
    return cast("StoreKind", _load(_STORES, name, settings.kind))(name, settings, prefix)


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

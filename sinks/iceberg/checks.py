"""Checks whether the sync can write to a warehouse. Changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from cdc.config import IcebergConfig
from cdc.errors import RefusedError
from cdc.stores.contract import StoreCheck
from sinks.iceberg.catalog import location, open_catalog, sqlite_file
from sinks.iceberg.state import StateTable, refuse_foreign


def check_warehouse(settings: IcebergConfig, name: str, prefix: str) -> list[StoreCheck]:
    """Return the results of all checks: the directory's permissions, the catalog and its state."""
    file = sqlite_file(settings)
    if file is not None:
        folder = next(each for each in (file.parent, *file.parent.parents) if each.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            return [
                StoreCheck("fail", f"{folder} is not writable", "Give this user write access, or set another `path`.")
            ]
        if not file.exists():
            return [StoreCheck("ok", f"{file.parent} is writable and has no catalog yet")]
    found = [_state_check(settings, name, prefix)]
    place = location(settings)
    if "://" not in place and not os.access(Path(place), os.W_OK | os.X_OK):
        found.append(
            StoreCheck("fail", f"{place} is not writable", "Give this user write access, or set another `path`.")
        )
    return found


def _state_check(settings: IcebergConfig, name: str, prefix: str) -> StoreCheck:
    catalog = open_catalog(settings)
    try:
        state = StateTable(catalog).read()
        if state is None:
            return StoreCheck("ok", "the catalog answers and has no generation yet")
        refuse_foreign(state, prefix, name)
    except RefusedError as error:
        return StoreCheck("fail", error.message.rstrip("."), error.remedy)
    finally:
        engine = getattr(catalog, "engine", None)
        if engine is not None:
            engine.dispose()
    gaps = f"; its history has {len(state.gaps)} gaps" if state.gaps else ""
    serving = f"generation {state.serving} serves" if state.serving is not None else "no generation serves yet"
    return StoreCheck("ok", f"the catalog answers, {serving}{gaps}")

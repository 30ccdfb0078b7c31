"""The journal of recent problems, with remedy, start and end. The dashboard shows it, and it survives restarts.

It is a JSON file beside the history, and is rewritten when an entry changes. It may be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cdc.logs import get_logger
from cdc.monitoring.alerts.conditions import AlertCondition

log = get_logger("journal")

_MOST = 50
# A problem that returns within this time continues its earlier entry.
_SAME_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One problem. `ended` is None while it lasts."""

    name: str
    where: str
    state: str
    reason: str
    remedy: str
    began: float
    ended: float | None = None


class Journal:
    """The last 50 entries. One thread calls `note`; any thread may read `entries`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: tuple[Entry, ...] = _read(path)

    def note(self, conditions: Mapping[str, AlertCondition], now: float) -> None:
        """Begin, update and end entries according to the conditions that hold now."""
        entries = list(self.entries)
        for name, condition in conditions.items():
            _begin(entries, name, condition, now)
        for at, entry in enumerate(entries):
            if entry.ended is None and entry.name not in conditions:
                entries[at] = replace(entry, ended=now)
        kept = tuple(sorted(entries, key=lambda entry: entry.began)[-_MOST:])
        if kept != self.entries:
            self.entries = kept
            self._write()

    def as_json(self) -> list[dict[str, Any]]:
        """Return the entries: those that last first, then those that ended; newest first in each group."""
        return [asdict(entry) for entry in sorted(self.entries, key=lambda each: (each.ended is not None, -each.began))]

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside = self._path.with_name(self._path.name + ".new")
            aside.write_text(json.dumps([asdict(entry) for entry in self.entries]), encoding="utf-8")
            aside.replace(self._path)
        except OSError as error:
            log.warning("journal_not_written", reason=error.strerror)


def _begin(entries: list[Entry], name: str, condition: AlertCondition, now: float) -> None:
    state, reason, remedy = condition.state.value, condition.reason, condition.remedy
    for at, entry in enumerate(entries):
        if entry.name == name and (entry.ended is None or now - entry.ended < _SAME_SECONDS):
            entries[at] = replace(entry, ended=None, state=state, reason=reason, remedy=remedy)
            return
    entries.append(Entry(name=name, where=condition.where, state=state, reason=reason, remedy=remedy, began=now))


def _read(path: Path) -> tuple[Entry, ...]:
    with suppress(OSError, ValueError, TypeError):
        return tuple(Entry(**each) for each in json.loads(path.read_text(encoding="utf-8")))
    return ()

"""Whether a copy is due: a Spark session is dear, so `tailrace snapshot` is started only when there is work for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cdc.config import Config
from cdc.errors import TailraceError
from cdc.logs import get_logger
from cdc.snapshot.table_status import read_status

log = get_logger("run")

_LOOK_SECONDS = 2.0
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CopiesDue:
    """`first`: capture holds the snapshot and waits. `tables`: incomplete ones, and why.

    Not those cancelled, nor those that are not wanted (`[copy] first = false`).
    """

    first: bool = False
    tables: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.first or bool(self.tables)


def copies_due(status: Status | None, *, first: bool = True) -> CopiesDue:
    """From what capture has written down (`cdc.snapshot.table_status`); None before its first start."""
    if status is None or status["state"] in ("creating", "recovering"):
        return CopiesDue()
    if status["state"] == "copying":
        return CopiesDue(first=True)
    if status.get("copies_paused"):
        return CopiesDue()
    unwanted = "cancelled", *(() if first else ("by_choice",))
    wanted = [table for table in status["tables"] if not table["complete"] and not any(map(table.get, unwanted))]
    return CopiesDue(tables=tuple((table["table"], table["reason"]) for table in wanted))


class CopyWatch:
    """Looks every few seconds, in a thread of its own: Kafka may be away, and nobody must wait for it."""

    def __init__(self, config: Config, read: Callable[[Config], Status | None] = read_status) -> None:
        self.due = CopiesDue()
        #: How often the pipeline has been recovered; None while that is not known.
        self.recoveries: int | None = None
        self._config = config
        self._read = read
        self._forgotten = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies-due", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def forget(self) -> None:
        """A copy has ended: what was read before that says nothing any more, also if it arrives only now."""
        self._forgotten += 1
        self.due = CopiesDue()

    def look(self) -> None:
        """What was known stands while nobody can tell."""
        forgotten = self._forgotten
        try:
            status = self._read(self._config)
            due = copies_due(status, first=self._config.snapshot.initial)
        except TailraceError as error:
            log.debug("copies_due_unknown", reason=error.message)
            return
        except Exception as error:  # a library's own: looking must go on
            log.warning("copies_due_unknown", reason=f"{type(error).__name__}: {error}")
            return
        self.recoveries = status.get("recoveries", 0) if status is not None else 0
        if forgotten == self._forgotten:
            self.due = due

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self.look()

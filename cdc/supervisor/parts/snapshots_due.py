"""Determines whether a snapshot is due.

A Spark session is expensive, so the supervisor starts `tailrace snapshot` only when there is work for it.
"""

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

_POLL_SECONDS = 2.0
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotsDue:
    """The snapshots that are due. `first`: capture waits for the initial snapshot.

    `tables`: incomplete tables and the reasons. Tables whose snapshot was cancelled are left out. So are those without
    an initial snapshot by choice (`[snapshot] initial = false`).
    """

    first: bool = False
    tables: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.first or bool(self.tables)


def snapshots_due(status: Status | None, *, first: bool = True) -> SnapshotsDue:
    """Return the snapshots that are due. `status`: from `cdc.snapshot.table_status`; None before capture's first start.

    `first`: whether tables need an initial snapshot, as `[snapshot] initial` says.
    """
    if status is None or status["state"] in ("creating", "recovering"):
        return SnapshotsDue()
    if status["state"] == "copying":
        return SnapshotsDue(first=True)
    if status.get("snapshots_paused"):
        return SnapshotsDue()
    unwanted = "cancelled", *(() if first else ("by_choice",))
    wanted = [table for table in status["tables"] if not table["complete"] and not any(map(table.get, unwanted))]
    return SnapshotsDue(tables=tuple((table["table"], table["reason"]) for table in wanted))


class SnapshotWatch:
    """Polls every few seconds in its own thread, so that the supervisor does not wait for Kafka."""

    def __init__(self, config: Config, read: Callable[[Config], Status | None] = read_status) -> None:
        self.due = SnapshotsDue()
        #: How often `tailrace recover` has run on this pipeline; None while this is unknown.
        self.recoveries: int | None = None
        self._config = config
        self._read = read
        self._forgotten = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots-due", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def forget(self) -> None:
        """Discard the result, because a snapshot has ended. A poll that started before that is discarded too."""
        self._forgotten += 1
        self.due = SnapshotsDue()

    def poll(self) -> None:
        """Poll once. If the status cannot be read, the previous result stays."""
        forgotten = self._forgotten
        try:
            status = self._read(self._config)
            due = snapshots_due(status, first=self._config.snapshot.initial)
        except TailraceError as error:
            log.debug("snapshots_due_unknown", reason=error.message)
            return
        except Exception as error:  # from a client library: polling must continue
            log.warning("snapshots_due_unknown", reason=f"{type(error).__name__}: {error}")
            return
        self.recoveries = status.get("recoveries", 0) if status is not None else 0
        if forgotten == self._forgotten:
            self.due = due

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self.poll()

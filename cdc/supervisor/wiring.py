"""Creates the parts that a config needs, and connects them to the supervisor."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from cdc.config import Config, IcebergConfig
from cdc.config.stores import SyncedStoreConfig
from cdc.logs import get_logger
from cdc.monitoring.process_file import parts_path, write_parts
from cdc.positions.store_notes import PauseWatch
from cdc.supervisor.child import Child
from cdc.supervisor.child_output import ChildOutput
from cdc.supervisor.hop_watch import HopWatch
from cdc.supervisor.parts.capture import CapturePart
from cdc.supervisor.parts.maintenance import MaintenancePart, maintain_hours
from cdc.supervisor.parts.part import PipelinePart
from cdc.supervisor.parts.snapshots_due import SnapshotWatch
from cdc.supervisor.parts.sync import SyncPart
from cdc.supervisor.process_report import RunReport, SnapshotFigures
from cdc.supervisor.refusal_watch import RefusalWatch
from cdc.supervisor.supervisor import Supervisor
from cdc.supervisor.terminal_view import RunView

log = get_logger("run")


def synced_stores(config: Config) -> list[str]:
    """Return the stores that `tailrace sync` supports."""
    return [name for name, store in config.stores.items() if isinstance(store, SyncedStoreConfig)]


class SnapshotPart(PipelinePart):
    """The snapshot process. `figures`: the progress that it reports."""

    figures: SnapshotFigures | None = None

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        if event.get("event") == "progress":
            self.figures = SnapshotFigures.from_event(event)

    def _begin(self) -> None:
        self.figures = None
        super()._begin()


class Pipeline:
    """All parts of one config and their supervisor."""

    def __init__(self, config: Config, *, log_level: str, lines: ChildOutput) -> None:
        self._config = config
        self._stores = synced_stores(config)
        for name in sorted(set(config.stores) - set(self._stores)):
            log.warning(
                "store_left_out",
                store=name,
                reason=f"{config.stores[name].kind} stores are not supported by tailrace sync",
            )
        self._snapshots = SnapshotWatch(config)
        self._notes = PauseWatch(config)
        self._repairs = RefusalWatch(
            lambda: self._snapshots.recoveries, lambda name: self._notes.is_refused(f"store {name}")
        )
        common = ["--log-level", log_level]
        where = ["--config", str(config.file)]
        given: dict[str, Any] = {"start": Child, "write_line": lines.write, "clock": time.monotonic}
        # The part needs capture's info events for its role, whatever log level the user has chosen.
        heard = ["--log-level", log_level if log_level in ("debug", "info") else "info"]
        self._capture = CapturePart([*heard, "capture", *where], **given)
        ours: dict[str, Any] = {"may_run": self._capture.may_lead, **given}
        self._snapshot = SnapshotPart(
            "snapshot",
            [*common, "snapshot", "--json", *where],
            is_due=lambda: bool(self._snapshots.due),
            ends_by_itself=True,
            when_ended=self._snapshots.forget,
            **ours,
        )
        # A warehouse's batches are long and heavy. In a separate process they do not slow down the other stores.
        warehouses = [name for name in self._stores if isinstance(config.stores[name], IcebergConfig)]
        quick = [name for name in self._stores if name not in warehouses]
        self._syncs = [
            SyncPart(names, [*common, "sync", *where], name=part, leads=self._capture.leads, **ours)
            for part, names in (("sync", quick), ("sync-warehouse", warehouses))
            if names
        ]
        self._upkeeps = [
            MaintenancePart(name, hours, [*common, "maintain", "--store", name, *where], **ours)
            for name in warehouses
            if (hours := maintain_hours(config, name))
        ]
        self._dashboard = (
            PipelinePart("dashboard", [*common, "dashboard", *where], **given) if config.dashboard.enabled else None
        )
        self._audit = (
            PipelinePart("audit", [*common, "audit", "--continuous", *where], **ours)
            if config.audit.rows_per_second and self._stores
            else None
        )

    def run(self, view: RunView, *, stop: threading.Event, clear_refusal: threading.Event) -> int:
        """Run all parts until `stop` is set; return the exit code. `clear_refusal`: restart the parts that refused."""
        syncs: Sequence[PipelinePart] = self._syncs
        others: Sequence[PipelinePart] = [part for part in (self._dashboard, self._audit) if part is not None]
        hops = HopWatch(self._config, self._stores, view.interval_seconds)
        supervisor = Supervisor(
            steady=[self._capture, *syncs],
            occasional=[self._snapshot, *self._upkeeps, *others],
            stages=[[self._snapshot, *self._upkeeps, *syncs], [self._capture], others],
            show=lambda to: self._show(to, self._report(hops)),
            stop=stop,
            clear_refusal=clear_refusal,
            is_repaired=self._is_repaired,
        )
        self._snapshots.start()
        hops.start()
        try:
            with self._notes:
                return supervisor.run(view)
        finally:
            self._snapshots.stop()
            hops.stop()

    def _is_repaired(self) -> bool:
        return self._repairs.poll(
            is_capture_refused=self._capture.is_refused,
            refused_stores=[name for sync in self._syncs for name in list(sync.refused)],
        )

    def _show(self, view: RunView, report: RunReport) -> None:
        write_parts(parts_path(self._config), report.as_json())
        view.show(report)

    def _report(self, hops: HopWatch) -> RunReport:
        parts = [
            part
            for part in (self._capture, self._snapshot, *self._syncs, *self._upkeeps, self._audit, self._dashboard)
            if part is not None
        ]
        return RunReport(
            parts=tuple(part.state() for part in parts),
            hops=hops.hops,
            due=self._snapshots.due,
            snapshot=self._snapshot.figures if self._snapshot.is_running else None,
            refused_stores={name: reason for sync in self._syncs for name, reason in sync.refused.items()},
        )

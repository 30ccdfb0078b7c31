"""The operator's view of snapshots: status, pause, resume and cancel. Reads and writes Kafka only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from cdc.config import Config
from cdc.errors import RefusedError, UsageError
from cdc.kafka.topics import Topics
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import SnapshotState
from cdc.snapshot.requests import SnapshotRequests, read_requests, write_requests
from cdc.snapshot.table_status import read_status
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states


def snapshots_overview(config: Config) -> dict[str, Any] | None:
    """Return the status of snapshots, or None before capture's first start.

    `copies` has the running snapshots and the one that ended last.
    """
    status = read_status(config)
    if status is None:
        return None
    states = read_recorded_states(config) or TableStates()
    with SnapshotLog(config.kafka) as log:
        log.refresh()
    under_way = [copy for copy in log.copies.values() if copy.state in ("open", "planned")]
    ended = [copy for copy in log.copies.values() if copy.state not in ("open", "planned")]
    shown = [*under_way, *sorted(ended, key=lambda copy: copy.ended_ms)[-1:]]
    return {
        "paused": status["snapshots_paused"],
        "snapshots": [_described(copy, log, states, paused=status["snapshots_paused"]) for copy in shown],
        "incomplete": [table for table in status["tables"] if not table["complete"]],
    }


def _described(copy: SnapshotState, log: SnapshotLog, states: TableStates, *, paused: bool) -> dict[str, Any]:
    chunks = log.chunks.get(copy.id, {}).values()
    done = [chunk for chunk in chunks if chunk.done]
    names = {oid: f"{state.schema}.{state.table}" for oid, state in states.tables.items()}
    figures = log.progress.get(copy.id)
    under_way = copy.state in ("open", "planned")
    return {
        "id": copy.id,
        "kind": copy.kind,
        "state": "paused" if paused and under_way and copy.kind == "later" else copy.state,
        "tables": sorted(names.get(oid, oid) for oid in copy.tables),
        "where": copy.where,
        "chunks": len(done),
        "total_chunks": copy.chunks,
        "rows": sum(chunk.rows for chunk in done),
        "started_ms": copy.started_ms,
        "ended_ms": copy.ended_ms,
        "reason": copy.reason,
        "progress": None if figures is None or not under_way else msgspec.to_builtins(figures),
    }


def pause_snapshots(config: Config, *, paused: bool) -> SnapshotRequests:
    """Pause or resume incremental snapshots, and return the requests now in force.

    A running snapshot finishes the chunks that it has started, and starts no other until the operator resumes. Resuming
    also withdraws all cancellations.
    """
    _refuse_during_initial_snapshot(config)
    requests = read_requests(config.kafka).pausing(paused)
    if not paused:
        requests = requests.wanting(list(requests.cancelled))
    write_requests(config.kafka, requests)
    return requests


def cancel_snapshots(config: Config, tables: Collection[str]) -> list[str]:
    """Cancel the snapshots of the named tables, or of all tables that are being copied or due.

    Returns the names of the tables whose snapshot was cancelled.
    """
    _refuse_during_initial_snapshot(config)
    states = read_recorded_states(config) or TableStates()
    with SnapshotLog(config.kafka) as log:
        copies = [copy for copy in log.refresh().copies.values() if copy.kind == "later" and copy.state == "planned"]
    known = {f"{state.schema}.{state.table}": (oid, state.topic) for oid, state in states.tables.items()}
    copied = {oid for copy in copies for oid in copy.tables}
    due = states.due(first=config.snapshot.initial)
    busy = [name for name, (oid, topic) in known.items() if oid in copied or topic in due]
    wanted = [name if "." in name else f"public.{name}" for name in tables] or busy
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"Table {name} is not captured.", remedy=f"Captured tables: {', '.join(sorted(known)) or 'none'}."
            )
    chosen = [name for name in wanted if name in busy]
    if chosen:
        requests = read_requests(config.kafka).cancelling([known[name][1] for name in chosen])
        write_requests(config.kafka, requests)
    return sorted(chosen)


def _refuse_during_initial_snapshot(config: Config) -> None:
    """Refuse while the initial snapshot runs or before capture's first start.

    Also creates the requests topic if it is missing, since older releases did not create it.
    """
    status = read_status(config)
    if status is None:
        raise RefusedError("Capture has not been started yet.", remedy="There is nothing to pause or cancel.")
    if status["state"] == "copying":
        raise RefusedError(
            "The initial snapshot cannot be paused or cancelled: it holds a Postgres snapshot and the WAL since then.",
            remedy="Limit its rate instead ([snapshot] rows_per_second), or remove the pipeline: tailrace remove --all",
        )
    topics = Topics(config.kafka)
    try:
        topics.ensure_control()
    finally:
        topics.close()

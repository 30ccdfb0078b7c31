"""Later copies as people see and steer them: what is under way, what is asked for. Reads and writes Kafka only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from cdc.config import Config
from cdc.errors import RefusedError, UsageError
from cdc.kafka.topics import Topics
from cdc.snapshot.log import CopyLog
from cdc.snapshot.records import CopyState
from cdc.snapshot.requests import CopyRequests, read_requests, write_requests
from cdc.snapshot.table_status import read_status
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states


def copies_overview(config: Config) -> dict[str, Any] | None:
    """None before the first start of capture. `copies`: those under way, and the one that ended last."""
    status = read_status(config)
    if status is None:
        return None
    states = read_recorded_states(config) or TableStates()
    with CopyLog(config.kafka) as log:
        log.refresh()
    under_way = [copy for copy in log.copies.values() if copy.state in ("open", "planned")]
    ended = [copy for copy in log.copies.values() if copy.state not in ("open", "planned")]
    shown = [*under_way, *sorted(ended, key=lambda copy: copy.ended_ms)[-1:]]
    return {
        "paused": status["copies_paused"],
        "copies": [_described(copy, log, states, paused=status["copies_paused"]) for copy in shown],
        "incomplete": [table for table in status["tables"] if not table["complete"]],
    }


def _described(copy: CopyState, log: CopyLog, states: TableStates, *, paused: bool) -> dict[str, Any]:
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


def pause_copies(config: Config, *, paused: bool) -> CopyRequests:
    """A copy under way finishes the chunks that it is at; nothing is begun until `paused` is taken back."""
    _refuse_first_copy(config)
    requests = read_requests(config.kafka).pausing(paused)
    if not paused:
        requests = requests.wanting(list(requests.cancelled))
    write_requests(config.kafka, requests)
    return requests


def cancel_copies(config: Config, tables: Collection[str]) -> list[str]:
    """The tables that are left alone from now on: those named, or all that are being copied or due for it."""
    _refuse_first_copy(config)
    states = read_recorded_states(config) or TableStates()
    with CopyLog(config.kafka) as log:
        copies = [copy for copy in log.refresh().copies.values() if copy.kind == "later" and copy.state == "planned"]
    known = {f"{state.schema}.{state.table}": (oid, state.topic) for oid, state in states.tables.items()}
    copied = {oid for copy in copies for oid in copy.tables}
    due = states.due(first=config.snapshot.initial)
    busy = [name for name, (oid, topic) in known.items() if oid in copied or topic in due]
    wanted = [name if "." in name else f"public.{name}" for name in tables] or busy
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"Table {name} is not captured.", remedy=f"Captured are: {', '.join(sorted(known)) or 'none'}."
            )
    chosen = [name for name in wanted if name in busy]
    if chosen:
        requests = read_requests(config.kafka).cancelling([known[name][1] for name in chosen])
        write_requests(config.kafka, requests)
    return sorted(chosen)


def _refuse_first_copy(config: Config) -> None:
    """And see to it that there is a topic to write to: an older Tailrace has made none."""
    status = read_status(config)
    if status is None:
        raise RefusedError("Capture has not been started yet.", remedy="There is nothing to pause or cancel.")
    if status["state"] == "copying":
        raise RefusedError(
            "The first copy is under way: it holds a snapshot and the log since then, so that it cannot wait.",
            remedy="Limit its rate instead ([copy] rows_per_second), or take the pipeline away: tailrace remove --all",
        )
    topics = Topics(config.kafka)
    try:
        topics.ensure_control()
    finally:
        topics.close()

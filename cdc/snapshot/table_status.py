"""Capture's status from its records in Kafka: progress, and the tables that are incomplete. Reads Kafka only."""

from __future__ import annotations

from typing import Any

from cdc.config import Config
from cdc.kafka.topics import Topics
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions.progress import Progress, read_progress
from cdc.snapshot.requests import SnapshotRequests, read_requests
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import read_recorded_states

_UNDER_WAY = {"since": str(LSN(0)), "reason": "the initial snapshot is running"}


def read_status(config: Config) -> dict[str, Any] | None:
    """Return capture's status, or None before its first start."""
    name = control_topic(config.kafka.prefix, Control.PROGRESS)
    topics = Topics(config.kafka)
    try:
        if not topics.describe([name]):
            return None
    finally:
        topics.close()
    progress = read_progress(config.kafka.client_options(), name, timeout_seconds=10)
    if progress is None:
        return None
    return _described(progress, read_recorded_states(config) or TableStates(), read_requests(config.kafka))


def _described(progress: Progress, states: TableStates, requests: SnapshotRequests) -> dict[str, Any]:
    return {
        "state": progress.state,
        "snapshots_paused": requests.paused,
        "version": str(progress.version),
        "confirmed_lsn": str(progress.confirmable),
        "inside_transaction": progress.inside_transaction,
        "commit_time_us": progress.commit_time_us,
        "written_ms": progress.written_ms,
        "recoveries": progress.recoveries,
        "tables": [
            {
                "table": f"{state.schema}.{state.table}",
                "topic": state.topic,
                "complete": progress.state == "streaming" and state.topic not in states.pending,
                **(
                    {
                        "since": str(LSN(mark.since)),
                        "reason": mark.reason,
                        **({"by_choice": True} if mark.by_choice else {}),
                    }
                    if (mark := states.pending.get(state.topic)) is not None
                    else _UNDER_WAY
                    if progress.state != "streaming"
                    else {}
                ),
                **({"cancelled": True} if state.topic in requests.cancelled else {}),
                **({"parked": parked} if (parked := (progress.parked or {}).get(state.topic)) else {}),
            }
            for state in sorted(states.tables.values(), key=lambda state: state.topic)
        ],
    }

"""Reads the tables' recorded state from Kafka, and formats why a table is incomplete."""

from __future__ import annotations

from cdc.config import Config, TableSelector
from cdc.kafka.control_topics import read_last
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.tables.recorded_state import KEY as STATES_KEY
from cdc.tables.recorded_state import IncompleteMark, TableStates, decode_states


def read_recorded_states(config: Config) -> TableStates | None:
    """Return the last record, or None before capture's first start."""
    name = control_topic(config.kafka.prefix, Control.SCHEMA)
    data = read_last(config.kafka.client_options(), name, STATES_KEY, timeout_seconds=10)
    return None if data is None else decode_states(data)


def incomplete(mark: IncompleteMark) -> str:
    """Return the text that all commands and pages show for an incomplete table."""
    return f"incomplete since {LSN(mark.since)}: {mark.reason}"


def copy_command(states: TableStates | None, topic: str) -> str:
    """Return the command that completes this table."""
    mark = None if states is None else states.pending.get(topic)
    if states is None or mark is None or not mark.by_choice:
        return "tailrace snapshot"
    names = (TableSelector(state.schema, state.table) for state in states.tables.values() if state.topic == topic)
    return " ".join(["tailrace snapshot", *(f"--table {name}" for name in names)])

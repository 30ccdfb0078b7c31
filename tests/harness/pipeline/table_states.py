"""What capture has recorded of a pipeline's tables, and what the topics have of them, for tests of schema changes."""

from __future__ import annotations

from typing import Any

from cdc.kafka.control_topics import read_last
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.tables.recorded_state import KEY, TableStates, decode_states
from tests.harness.kafka.records import read_topic
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually


def states(pipeline: Pipeline) -> TableStates:
    """The table states in the last record."""
    name = control_topic(pipeline.prefix, Control.SCHEMA)
    data = read_last({"bootstrap.servers": pipeline.bootstrap}, name, KEY)
    assert data is not None
    return decode_states(data)


def wait_for_look(pipeline: Pipeline, while_running: Process) -> None:
    """Wait until capture has read the catalog as it is now, which it does with every heartbeat."""
    name = control_topic(pipeline.prefix, Control.POSITIONS)
    now = pipeline.database.lsn()

    def looked() -> bool:
        records = read_topic(pipeline.bootstrap, name)
        return bool(records) and LSN(records[-1].value["confirm_lsn"]) > now

    while_running.wait_for(looked, 60, f"a look at the catalog after {now}")


def marks(pipeline: Pipeline) -> dict[str, str]:
    """The reason for which each topic is incomplete, by its name without the prefix and the schema.

    Leaves out tables without an initial snapshot, since most tests begin without one.
    """
    found = states(pipeline).pending
    return {topic.rpartition(".")[2]: mark.reason for topic, mark in found.items() if not mark.by_choice}


def markers(pipeline: Pipeline, table: str) -> int:
    """The number of TRUNCATE markers in the topic, one per partition and TRUNCATE."""
    return sum(record.op == "t" for record in pipeline.records(table))


def wait_for_markers(pipeline: Pipeline, table: str, count: int = 2) -> None:
    eventually(lambda: markers(pipeline, table) == count, 30, f"{count} markers on the topic of {table}")


def rows_after(pipeline: Pipeline, table: str, key: str = "id") -> list[Any]:
    """`after` of every insert and update, by key, oldest first."""
    rows = [record.value["after"] for record in pipeline.records(table) if record.op in ("c", "u")]
    return sorted(rows, key=lambda row: row[key])


def schema_versions(pipeline: Pipeline, table: str) -> list[list[str]]:
    """The column names of every recorded state of the table, in version order."""
    name = control_topic(pipeline.prefix, Control.SCHEMA)
    found = [record.value for record in read_topic(pipeline.bootstrap, name) if "columns" in record.value]
    records = [value for value in found if value["topic"] == pipeline.topic(table)]
    assert [value["version"] for value in records] == sorted({value["version"] for value in records})
    return [[column["name"] for column in value["columns"]] for value in records]

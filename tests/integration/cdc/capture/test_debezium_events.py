"""Compares our events with those of a real Debezium 3.6, field by field, from the same SQL script."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from cdc.lsn import Version
from cdc.names import topic
from tests.golden.script import GOLDEN, read_script, run_setup, run_steps
from tests.harness.comparison.debezium_events import DIFFERENCES, Event, Mismatch, check_shape, compare, explain
from tests.harness.docs.events_page import example, first_column
from tests.harness.kafka.records import Record
from tests.harness.kafka.topics import delete_topics
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, tailrace_argv

PREFIX = "golden"
TABLES = ("customers", "order_items", "full_rows", "all_types", "Mixed Case")

Events = dict[str, list[Event]]


@pytest.fixture(scope="module")
def records(
    postgres_url: str, kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Record]]]:
    """What a real capture publishes of the script, by table, in one partition as in the recording."""
    database = Database(postgres_url, "golden")
    processes: list[Process] = []

    def start(*args: str) -> Process:
        processes.append(Process(tailrace_argv(*args)))
        return processes[-1]

    folder = tmp_path_factory.mktemp("golden")
    prefix = f"golden{database.name[-8:]}"
    pipeline = Pipeline(database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=folder, start=start)
    pipeline.configure(kafka={"partitions": 1})
    script = read_script()
    try:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            run_setup(connection, script)
            capture = pipeline.start()
            run_steps(connection, script)
        pipeline.fence(while_running=capture)
        yield {table: pipeline.records(table) for table in TABLES}
    finally:
        for process in processes:
            process.kill()
        database.drop()
        delete_topics(kafka_bootstrap, prefix)


@pytest.fixture(scope="module")
def ours(records: dict[str, list[Record]]) -> Events:
    return {table: [_event(record) for record in found] for table, found in records.items()}


@pytest.fixture(scope="module")
def theirs() -> Events:
    recorded = json.loads((GOLDEN / "events.json").read_text())
    return {
        table: [
            Event(event["key"], event["value"], tuple((name, value) for name, value in event["headers"]))
            for event in recorded[_their_topic(table)]
        ]
        for table in TABLES
    }


def _their_topic(table: str) -> str:
    return f"{PREFIX}.public.{table.replace(' ', '_')}"


def _event(record: Record) -> Event:
    headers = tuple((name, value.decode()) for name, value in record.headers.items())
    return Event(json.loads(record.key), _plain(record.value), headers)


def _plain(value: object) -> dict[str, object] | None:
    """JSON with ordinary floats, as Debezium's recording has them."""
    plain: dict[str, object] | None = json.loads(json.dumps(value, default=float))
    return plain


def _mismatches(theirs: Events, ours: Events) -> list[Mismatch]:
    found = list(compare(theirs, ours))
    found += [
        Mismatch("topic", _their_topic(table), topic(PREFIX, "public", table))
        for table in TABLES
        if _their_topic(table) != topic(PREFIX, "public", table)
    ]
    recorded = json.loads((GOLDEN / "events.json").read_text())
    tables = {_their_topic(table) for table in TABLES}
    found += [Mismatch(f"topic.{name.rpartition('.')[2]}", name, None) for name in recorded if name not in tables]
    return found


def test_every_difference_is_documented(theirs: Events, ours: Events) -> None:
    """Keys, envelopes, values, headers and tombstones equal Debezium's, except as docs/reference/events.md lists."""
    unexplained = [str(found) for found in _mismatches(theirs, ours) if explain(found) is None]
    assert not unexplained, "\n".join(unexplained)


def test_every_documented_difference_occurs(theirs: Events, ours: Events) -> None:
    """A documented difference that does not occur is an error in the documentation."""
    assert {explain(found) for found in _mismatches(theirs, ours)} == set(DIFFERENCES)


def test_the_documentation_lists_the_same_differences() -> None:
    """The table in docs/reference/events.md equals the comparison's list of differences."""
    assert sorted(first_column("What differs from Debezium")) == sorted(DIFFERENCES)


def test_the_documented_envelope_has_the_fields_of_a_real_one(ours: Events) -> None:
    """The documented envelope has the field names of a real one, in the same order, at every level."""
    documented, real = example("Envelope"), ours["customers"][0].value
    assert real is not None
    assert list(documented) == list(real)
    for part in ("source", "transaction"):
        assert list(documented[part]) == list(real[part])


def test_what_differs_at_every_run_has_the_same_shape(theirs: Events, ours: Events) -> None:
    """Clocks, LSNs, sequences and transaction ids have the same form in our events and in Debezium's."""
    for events in (*theirs.values(), *ours.values()):
        for event in events:
            check_shape(event)


def test_keys_are_the_very_bytes_of_compact_json(records: dict[str, list[Record]]) -> None:
    """Every key has the bytes of compact JSON, since the partition depends on them."""
    for record in (record for found in records.values() for record in found):
        assert record.key == json.dumps(json.loads(record.key), separators=(",", ":"), ensure_ascii=False).encode()


def test_every_record_has_its_version_in_header_and_envelope(records: dict[str, list[Record]]) -> None:
    """The header's version equals the envelope's position and number; tombstones have the header alone."""
    for record in (record for found in records.values() for record in found):
        assert record.version is not None
        if record.value is not None:
            source = record.value["source"]
            assert record.version == Version(source["position"], source["seq"])
            assert source["commit_lsn"] == source["position"]


def test_versions_rise_through_each_topic(records: dict[str, list[Record]]) -> None:
    """Versions rise in each topic, so that compaction keeps the record of a key with the largest version."""
    for found in records.values():
        versions = [record.version for record in found if record.version is not None]
        assert versions == sorted(versions)


def test_a_re_selected_value_is_whole_and_marked(records: dict[str, list[Record]]) -> None:
    """An update whose log record omits a TOASTed value has the value, and a header that marks it as re-selected."""
    (filled,) = (record for record in records["customers"] if record.value and "reselected" in record.value["source"])
    assert filled.value["source"]["reselected"] == ["biography"]
    assert filled.value["after"]["biography"] == "tex " * 1000

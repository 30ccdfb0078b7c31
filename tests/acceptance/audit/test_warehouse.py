"""An audit of a warehouse finds every change that was made to its files without Tailrace, and no other difference."""

from __future__ import annotations

import datetime
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from cdc.audit.audit_log import read_audits
from cdc.audit.audit_records import AuditRecord
from cdc.audit.sampled_audit import ContinuousAudit
from sinks.iceberg.store import IcebergStore
from spark_jobs.audit.run import AuditOptions, run_audit
from tests.acceptance.audit.test_no_false_alarm import _altering
from tests.acceptance.warehouse.test_content import _ROWS, _TYPES
from tests.golden.documented import read_examples, read_setup
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.store_pipeline import StorePipeline
from tests.integration.cdc.snapshot.test_snapshot_equals_stream import make_wide_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_MORE = """
CREATE DOMAIN small AS int;
CREATE TABLE pairs (a date, b text, n small, f real, x float8, kept int, PRIMARY KEY (a, b));
"""
_PAIRS = """
INSERT INTO pairs SELECT date '2024-01-01' + i, 'b' || i, i, 1e6::real * i + 0.5, 1e15 + i * 1e14, i
FROM generate_series(1, 400) i;
INSERT INTO pairs VALUES ('2020-01-01', 'tiny', 1, '1e-45', '5e-324', 1), ('2020-01-01', 'big', 1, '3.4e38', 1e300, 1);
"""
_SHAPE = {
    "public.pairs": {
        "where": "kept > 10",
        "columns": ["a", "b", "n", "kept"],
        "select": {"half": "x / 3", "cents": "cast(kept AS decimal(12,2)) / 7", "day": "date_add(a, 1)"},
    }
}

#: What is wrong after `_spoil`; a sample does not look at versions.
_SPOILED = {
    '["2024-01-21Z","b20"]': ("missing", []),
    '["2024-01-22Z","b21"]': ("content", ["n"]),
    '["2024-01-23Z","b22"]': ("content", ["(not a JSON object)"]),
    '["2024-01-24Z","b23"]': ("version", []),
    '["2024-01-21Z","other"]': ("extra", []),
    '["2025-02-03Z","b399"]': ("ghost", []),
}
_LATE = '["2024-01-24Z","b23"]'

# Values of docs/reference/types.md that their typed column does not take, so that the row would be parked.
_UNFIT = re.compile(r"infinity|12024|-0043|\[\[|^\"\[|NaN", re.IGNORECASE)
_TYPED = re.compile(r"float|real|double|date|time|numeric\(|money|\[\]|vector|price|moment|names")


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> StorePipeline:
    plain = {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 500}
    shaped = {**plain, "path": str(tmp_path / "shaped"), "tables": ["public.pairs"], "shape": _SHAPE}
    strings = ["public.typed.f8", "public.typed.i4", "public.typed.fa", "public.typed.tz", "public.typed.b"]
    return StorePipeline(make_pipeline(), spark, {"warehouse": {**plain, "string_columns": strings}, "shaped": shaped})


def _audit(stores: StorePipeline, spark: SparkSession, *tables: str, **options: Any) -> dict[Any, AuditRecord]:
    chosen = AuditOptions(stores=stores.names, tables=tables, timeout_seconds=60, **options)
    found = run_audit(stores.config, chosen, lambda: spark)
    return {(record.store, record.table.partition(".")[2]): record for record in found}


def _spoil(table: Table) -> None:
    """Spoil the table `pairs`: one row removed, one changed, one with a future version, one extra, one twice, one
    deleted row back.
    """
    rows = table.scan().to_arrow()
    by_name = {name: rows.filter(pa.compute.equal(rows["b"], name)) for name in ("b20", "b21", "b22", "b23")}
    table.delete(EqualTo("b", "b20"))
    place = rows.schema.get_field_index("_tailrace_position")
    late = by_name["b23"].set_column(place, rows.schema.field(place), pa.array([1 << 60], pa.int64()))
    table.overwrite(late, overwrite_filter=EqualTo("b", "b23"))
    day = pa.array([datetime.date(2025, 2, 3)], pa.date32())
    table.append(by_name["b20"].set_column(0, "a", day).set_column(1, "b", pa.array(["b399"])).cast(rows.schema))
    changed = by_name["b21"].set_column(2, "n", pa.array(["-1"], pa.string()))
    table.overwrite(changed.cast(rows.schema), overwrite_filter=EqualTo("b", "b21"))
    table.append(by_name["b22"])
    table.append(by_name["b20"].set_column(1, "b", pa.array(["other"], pa.string())).cast(rows.schema))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported", "ignore:Parquet writer option")
def test_changes_made_to_the_files_are_found_and_repaired(stores: StorePipeline, spark: SparkSession) -> None:
    """An audit finds each spoiled row and no other; a repair corrects them while the sync runs, and the sync
    continues.
    """
    database = stores.pipeline.database
    database.execute(_TYPES + _MORE)
    stores.pipeline.start()
    with stores.syncing():
        database.execute(_ROWS + ";" + _PAIRS)
        database.execute("UPDATE pairs SET kept = kept + 1 WHERE kept < 100; DELETE FROM pairs WHERE kept = 399")
        stores.wait(deadline_seconds=120)
        found = _audit(stores, spark)
        assert {each.verdict for each in found.values()} == {"equal"}, found
        # As bytes, or as text: nothing had to be looked at again.
        assert {each.looked_again for each in found.values()} == {0}, found
        with stores.opened("warehouse") as (store, _):
            assert isinstance(store, IcebergStore)
            table = store.tables.load(("public", "pairs"))
            assert table is not None
            _spoil(table)
        found = _audit(stores, spark, "pairs")
        assert found["shaped", "pairs"].verdict == "equal"
        spoiled = found["warehouse", "pairs"]
        assert {each.id: (each.kind, each.fields) for each in spoiled.differences} == _SPOILED
        samples = ContinuousAudit(stores.config, rows_per_second=300, warehouses=True)
        eventually(lambda: _sampled(samples, stores) >= {*_SPOILED} - {_LATE}, 90, "samples to find them")
        before = _position(stores)
        with _updating(database):
            repaired = _audit(stores, spark, "pairs", repair=True)["warehouse", "pairs"]
        assert (repaired.verdict, repaired.repaired) == ("equal", 6), repaired
        assert _position(stores) >= before
        database.execute("UPDATE pairs SET kept = -1 WHERE b IN ('b20', 'b21', 'b22', 'b23')")
        again = _audit(stores, spark, "pairs")["warehouse", "pairs"]
        assert again.verdict == "equal", again
        eventually(lambda: not _sampled(samples, stores), 90, "samples to find that it is repaired")
        _assert_one_open_version(stores, rows=again.store_rows)


def _sampled(samples: ContinuousAudit, stores: StorePipeline) -> set[str]:
    """The differences in `pairs` that the continuous audit has found by now."""
    samples.turn()
    records = [each for each in read_audits(stores.config) if each.sampled and each.table == "public.pairs"]
    assert {each.store for each in records} <= {"warehouse"}
    return {each.id for record in records for each in record.differences}


def _position(stores: StorePipeline) -> list[int]:
    with stores.opened("warehouse") as (store, generation):
        position = store.position(generation)
        assert position is not None
        return next(each.next_offsets for topic, each in position.topics.items() if topic.endswith(".pairs"))


@contextmanager
def _updating(database: Database) -> Iterator[None]:
    """Update rows that are not repaired until the block ends."""
    stop = threading.Event()

    def update() -> None:
        while not stop.wait(0.1):
            database.execute("UPDATE pairs SET kept = kept + 1 WHERE b IN ('b19', 'b24', 'b30')")

    writing = threading.Thread(target=update)
    writing.start()
    try:
        yield
    finally:
        stop.set()
        writing.join(30)


def _assert_one_open_version(stores: StorePipeline, *, rows: int) -> None:
    """The history has exactly one open version of each row that exists."""
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        history = store.tables.load(("public__history", "pairs"))
        assert history is not None
        found = history.scan(row_filter="_tailrace_open = true and _tailrace_op != 'd'").to_arrow()
    keys = [(row["a"], row["b"]) for row in found.select(["a", "b"]).to_pylist()]
    assert len(keys) == len(set(keys)) == rows


@pytest.mark.slow
def test_every_documented_type_is_compared(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> None:
    """No false alarm for any value of docs/reference/types.md, as text and typed, while columns are added and
    dropped.
    """
    section = {
        "kind": "iceberg",
        "path": str(tmp_path / "warehouse"),
        "trigger_milliseconds": 500,
        "string_columns": [f"public.wide.v{number}" for number in range(len(read_examples()))],
    }
    stores = StorePipeline(make_pipeline(), spark, {"warehouse": section})
    database = stores.pipeline.database
    with database.connect() as connection:
        connection.execute(read_setup().encode())
        make_wide_table(connection)
        major = connection.info.server_version // 10000
    examples = [example for example in read_examples() if example.since <= major]
    names = ", ".join(
        f"v{number}"
        for number, each in enumerate(examples)
        if not (_TYPED.search(each.type) and _UNFIT.search(each.json))
    )
    database.execute(f"CREATE TABLE fitting AS SELECT id, {names} FROM wide; ALTER TABLE fitting ADD PRIMARY KEY (id)")
    database.execute(SCHEMA)
    stores.pipeline.start()
    assert copy_due(stores.pipeline, spark, "public.wide", "public.fitting").is_complete
    database.execute("UPDATE wide SET id = id; UPDATE fitting SET id = id; INSERT INTO items VALUES (1, 1, NULL)")
    with stores.syncing():
        stores.wait(deadline_seconds=150)
        found = _audit(stores, spark, "wide", "fitting")
        assert {(each.verdict, each.parked) for each in found.values()} == {("equal", 0)}, found
        with Writer(database), _altering(database):
            for _ in range(3):
                found = _audit(stores, spark, "items")
                assert found
                assert {each.verdict for each in found.values()} <= {"equal", "undecided"}, found
        found = _audit(stores, spark, "items")
        assert {each.verdict for each in found.values()} == {"equal"}, found

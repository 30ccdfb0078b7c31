"""An audit of a warehouse finds what was done to its files behind Tailrace's back, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

from cdc.audit.records import AuditRecord
from sinks.iceberg.store import IcebergStore
from spark_jobs.audit.run import Options, run_audit
from tests.acceptance.test_audit import _altering
from tests.acceptance.test_warehouse_content import _ROWS, _TYPES
from tests.golden.documented import read_examples, read_setup
from tests.harness.pipeline import MakePipeline
from tests.harness.store_sync import StorePipeline
from tests.harness.writer import SCHEMA, Writer
from tests.integration.test_copy_types import make_wide_table

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

# Values of docs/types.md that their typed column does not take, so that the row would be parked.
_UNFIT = re.compile(r"infinity|12024|-0043|\[\[|^\"\[|NaN", re.IGNORECASE)
_TYPED = re.compile(r"float|real|double|date|time|numeric\(|money|\[\]|vector|price|moment|names")


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> StorePipeline:
    plain = {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 500}
    shaped = {**plain, "path": str(tmp_path / "shaped"), "tables": ["public.pairs"], "shape": _SHAPE}
    strings = ["public.typed.f8", "public.typed.i4", "public.typed.fa", "public.typed.tz", "public.typed.b"]
    return StorePipeline(make_pipeline(), spark, {"warehouse": {**plain, "string_columns": strings}, "shaped": shaped})


def _audit(stores: StorePipeline, spark: SparkSession, *tables: str, **options: Any) -> dict[Any, AuditRecord]:
    chosen = Options(stores=stores.names, tables=tables, timeout_seconds=60, **options)
    found = run_audit(stores.config, chosen, lambda: spark)
    return {(record.store, record.table.partition(".")[2]): record for record in found}


def _spoil(table: Table) -> None:
    """Of pairs: one row gone, one with another value, one too many, one twice."""
    rows = table.scan().to_arrow()
    by_name = {name: rows.filter(pa.compute.equal(rows["b"], name)) for name in ("b20", "b21", "b22")}
    table.delete(EqualTo("b", "b20"))
    changed = by_name["b21"].set_column(2, "n", pa.array(["-1"], pa.string()))
    table.overwrite(changed.cast(rows.schema), overwrite_filter=EqualTo("b", "b21"))
    table.append(by_name["b22"])
    table.append(by_name["b20"].set_column(1, "b", pa.array(["other"], pa.string())).cast(rows.schema))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
def test_what_was_done_to_the_files_is_found(stores: StorePipeline, spark: SparkSession) -> None:
    """Types, texts, shapes: no alarm. A row gone, changed, too many, twice: just these, and no repair
    that would not be one."""
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
        found = _audit(stores, spark, "pairs", repair=True)
        assert found["shaped", "pairs"].verdict == "equal"
        spoiled = found["warehouse", "pairs"]
        assert {each.id: (each.kind, each.fields) for each in spoiled.differences} == {
            '["2024-01-21Z","b20"]': ("missing", []),
            '["2024-01-22Z","b21"]': ("content", ["n"]),
            '["2024-01-23Z","b22"]': ("content", ["(not a JSON object)"]),
            '["2024-01-21Z","other"]': ("extra", []),
        }
        assert (spoiled.verdict, spoiled.repaired) == ("drift", 0)
        assert "tailrace bootstrap warehouse" in spoiled.reason
    assert stores.bootstrap("warehouse").verdict.complete
    with stores.syncing():
        again = _audit(stores, spark, "pairs")["warehouse", "pairs"]
        assert (again.verdict, again.looked_again) == ("equal", 0)


@pytest.mark.slow
def test_every_documented_type_is_compared(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> None:
    """All values of docs/types.md: as text, and typed where they fit; while columns come and go there is no alarm."""
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
    database.execute("UPDATE wide SET id = id; UPDATE fitting SET id = id; INSERT INTO items VALUES (1, 1, NULL)")
    with stores.syncing():
        stores.wait(deadline_seconds=150)
        found = _audit(stores, spark, "wide", "fitting")
        assert {(each.verdict, each.parked) for each in found.values()} == {("equal", 0)}, found
        with Writer(database), _altering(database):
            for _ in range(3):
                found = _audit(stores, spark, "items")
                assert {each.verdict for each in found.values()} <= {"equal", "undecided", "incomplete"}, found
        found = _audit(stores, spark, "items")
        assert {each.verdict for each in found.values()} == {"equal"}, found

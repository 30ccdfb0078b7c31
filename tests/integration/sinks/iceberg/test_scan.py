"""The audit reads a warehouse's rows as any writer of Iceberg may have left them."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from cdc.config import IcebergConfig
from cdc.lsn import Version
from cdc.stores.contract import SchemaColumn, StoredRow, TableSchema
from sinks.iceberg.scan import IcebergScan
from sinks.iceberg.store import IcebergStore

# pyiceberg plays the other writer here, and says what it does not do.
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option")

TABLE = TableSchema(
    "public",
    "t",
    "p.public.t",
    ("id", "day"),
    (
        SchemaColumn("id", "int8", -1),
        SchemaColumn("day", "date", -1),
        SchemaColumn("f", "float4", -1),
        SchemaColumn("d", "_float8", -1),
        SchemaColumn("mood", "public.mood", -1),
    ),
)


@pytest.fixture
def scan(tmp_path: Path) -> Iterator[IcebergScan]:
    settings = IcebergConfig(path=str(tmp_path / "warehouse"))
    store = IcebergStore("warehouse", settings, "p")
    generation = store.create_generation([TABLE])
    store.switch(generation)
    found = store.tables.load(store.table_name(generation, TABLE))
    assert found is not None
    schema = found.schema().as_arrow()
    for first in (1, 4, 7):
        found.append(pa.Table.from_pylist([_row(number) for number in range(first, first + 3)], schema))
    found.append(pa.Table.from_pylist([_row(9), {**_row(10), "_tailrace_position": None}], schema))
    scan = IcebergScan("warehouse", settings, "p", generation)
    yield scan
    scan.close()
    store.close()


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "day": _day(number),
        "f": 1e6 * number,
        "d": [1e15, None, float("nan"), 100.0],
        "mood": "7",
        "_tailrace_position": 100 + number,
        "_tailrace_seq": 1,
    }


def _day(number: int) -> datetime.date:

    return datetime.date(2024, 1, number)


def _id(number: int) -> str:
    return orjson.dumps([str(number), f"2024-01-{number:02d}Z"]).decode()


def test_slices_together_give_every_row_as_the_topic_spells_it(scan: IcebergScan) -> None:
    """All slices together give each row in the topic's spelling; rows without a version count as foreign."""
    with scan.slices(TABLE, 2) as slices:
        parts = [[row for some in pickle.loads(pickle.dumps(each))() for row in some] for each in slices]  # noqa: S301
    rows = [row for part in parts for row in part]
    assert all(parts)
    assert sorted(row.id for row in rows) == sorted([*map(_id, range(1, 11)), _id(9)])
    by_id = {row.id: row for row in rows}
    content = b'{"id":3,"day":"2024-01-03Z","f":3e+06,"d":[1e+15,null,"NaN",100.0],"mood":"7"}'
    assert by_id[_id(3)] == StoredRow(_id(3), Version(103, 1), content)
    assert by_id[_id(10)].version == Version(0, 0)
    assert scan.spelled(TABLE) == {"mood"}


def test_rows_by_id(scan: IcebergScan) -> None:
    """Existing ids give their rows; a duplicate key, and an impossible id, give none."""
    found = scan.rows(TABLE, [_id(3), _id(9), _id(30), "x", '["x","2024-01-03Z"]'])
    assert set(found) == {_id(3), _id(9)}
    assert found[_id(3)].version == Version(103, 1)
    assert (found[_id(9)].row or b"").startswith(b"[{")
    many = scan.rows(TABLE, [_id(1), *(f'["{number}","2024-01-01Z"]' for number in range(100, 6000))])
    assert set(many) == {_id(1)}
    assert 0 < len(scan.sample(TABLE, 2)) <= 2

"""A warehouse whose catalog is a server works alike for Spark and pyiceberg."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest

from cdc.config import IcebergConfig
from cdc.config.settings import Location
from cdc.errors import TransientError
from cdc.secrets import Secret, Url
from cdc.stores.contract import SchemaColumn, TableSchema
from sinks.iceberg.catalog import open_catalog
from sinks.iceberg.state import StateConflictError, StateTable
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.warehouse.apply import WarehouseBatches
from spark_jobs.warehouse.maintain import maintain_warehouse
from spark_jobs.warehouse.query import query_warehouse
from tests.harness.postgres.database import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = TableSchema(
    "public", "t", "x.public.t", ("id",), (SchemaColumn("id", "int8", -1), SchemaColumn("name", "text", -1))
)


class NoParking:
    def park(self, rows: Any) -> None:
        raise AssertionError(f"parked: {list(rows)}")


def test_a_catalog_in_postgres(database: Database, spark: SparkSession, tmp_path: Path) -> None:
    """With a catalog in Postgres, tables are created, synced, switched and maintained, and both readers see the same
    rows.
    """
    parts = urlsplit(database.dsn)
    address = parts._replace(netloc=f"{parts.hostname}:{parts.port}").geturl()
    warehouse = IcebergConfig(
        path=Location(str(tmp_path / "warehouse")),
        catalog_uri=Url(address),
        catalog_username=parts.username,
        catalog_password=Secret(parts.password or "unused"),
    )
    exercise(warehouse, spark)
    assert database.execute("SELECT count(*) FROM iceberg_tables WHERE catalog_name = 'tailrace'")[0][0] >= 3
    nowhere = IcebergConfig(path=warehouse.path, catalog_uri=Url("postgresql://127.0.0.1:9/nothing?connect_timeout=2"))
    with pytest.raises(TransientError):
        open_catalog(nowhere)


def exercise(warehouse: IcebergConfig, spark: SparkSession) -> None:
    session = warehouse_session(spark, warehouse)
    with closing(IcebergStore("warehouse", warehouse, "x")) as store:
        assert store.serving() is None
        first = _built(store, session, [(1, "one", 8), (2, "two", 8)])
        assert first == [(1, "one"), (2, "two")]
        second = _built(store, session, [(2, "newer", 16), (3, "three", 16)])
        assert second == [(2, "newer"), (3, "three")], "after the switch readers see the other generation"
        [old, new] = store.list_generations()
        assert (store.serving(), old.number) == (new, 1)
        store.drop(old)
        assert _seen(store, session) == second
        assert [each.problem for each in maintain_warehouse(session, store, lambda _: None)] == [None, None]
        assert _seen(store, session) == second
        _of_two_writers_one_fails(store)


def _built(store: IcebergStore, session: SparkSession, rows: Sequence[tuple[int, str, int]]) -> list[tuple[Any, ...]]:
    generation = store.create_generation([_TABLE])
    fed = StoreTables(source={_TABLE.topic: _TABLE}, schemas={_TABLE.topic: _TABLE}, texts={}, spark=session)
    batches = WarehouseBatches(store, generation, fed, NoParking())
    batches.apply(_records(session, rows))
    store.switch(generation)
    return _seen(store, session)


def _seen(store: IcebergStore, session: SparkSession) -> list[tuple[Any, ...]]:
    by_spark = sorted(
        tuple(row) for row in query_warehouse(session, store, "SELECT id, name FROM public.t").frame.collect()
    )
    by_stranger = store.catalog.load_table("public.t").scan(selected_fields=("id", "name")).to_arrow().to_pylist()
    assert sorted((row["id"], row["name"]) for row in by_stranger) == by_spark
    return by_spark


def _records(session: SparkSession, rows: Sequence[tuple[int, str, int]]) -> DataFrame:
    row = 'concat(\'{"op":"c","after":{"id":\', id, \',"name":"\', name, \'"},"source":{"ts_us":1,"txId":7}}\')'
    return session.createDataFrame(list(rows), "id long, name string, position long").selectExpr(
        f"'{_TABLE.topic}' AS topic",
        "0 AS partition",
        "position AS offset",
        "CAST(concat('{\"id\":', id, '}') AS binary) AS key",
        f"CAST({row} AS binary) AS value",
        "CAST(concat(lpad(lower(hex(position)), 16, '0'), '.00000001') AS binary) AS stamp",
        "TIMESTAMP '2026-01-01 00:00:00' AS timestamp",
    )


def _of_two_writers_one_fails(store: IcebergStore) -> None:
    with closing(IcebergStore(store.name, store.settings, "x")) as other:
        mine, theirs = StateTable(store.catalog), StateTable(other.catalog)
        before = mine.read()
        assert before is not None
        assert theirs.read() == before
        theirs.write(msgspec.structs.replace(before, held_until_ms=1))
        with pytest.raises(StateConflictError):
            mine.write(msgspec.structs.replace(before, held_until_ms=2))
        assert store.state().held_until_ms == 1

"""Audits raise no false alarm while the source changes, and compare each store with its own shape."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.audit.audit_records import AuditRecord
from spark_jobs.audit.run import AuditOptions, run_audit
from tests.golden.documented import read_setup
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.store_pipeline import StorePipeline
from tests.harness.stores.tampering import tampering_with
from tests.integration.cdc.snapshot.test_snapshot_equals_stream import make_wide_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _differences(records: list[AuditRecord], store: str) -> dict[str, str]:
    """The kind of each difference, by row id."""
    return {each.id: each.kind for record in records if record.store == store for each in record.differences}


@contextmanager
def _altering(database: Database) -> Iterator[None]:
    """Add and drop columns of `items` until the block ends, each under a new name.

    A column that is added under the name of a dropped one would make the table incomplete, and nothing would be
    compared.
    """
    stop = threading.Event()

    def alter() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            for number in count():
                if stop.wait(2):
                    return
                connection.execute(f"ALTER TABLE items ADD COLUMN late{number} text".encode())
                if not stop.wait(2):
                    connection.execute(f"ALTER TABLE items DROP COLUMN late{number}".encode())

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_no_false_alarm_and_every_type(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str
) -> None:
    """Under constant writes and DDL, an audit of every documented type, two-column keys and masked values finds no
    drift.

    A missing row is reported by its key, without its values, and repaired. A table with a column that was added again
    under the name of a dropped one has no verdict until it has been copied.
    """
    pipeline = make_pipeline(capture={"mask_salt": "salt"})
    with pipeline.config.open("a") as config:
        config.write('[mask]\n"public.people.email" = "hash"\n"public.people.b" = "hash"\n')
    stores = StorePipeline(
        pipeline,
        spark,
        {"search": {"kind": "elasticsearch", "url": elasticsearch_url}, "cache": {"kind": "redis", "url": redis_url}},
    )
    database = pipeline.database
    database.execute(SCHEMA)
    database.execute("CREATE TABLE people (a int, b text, email text, PRIMARY KEY (a, b))")
    with database.connect() as connection:
        connection.execute(read_setup().encode())
        make_wide_table(connection)
    pipeline.start()
    assert copy_due(pipeline, spark, "public.wide").is_complete
    database.execute("UPDATE wide SET id = id")
    database.execute("INSERT INTO people SELECT i, 'b' || i, 'e' || i FROM generate_series(1, 50) i")
    options = AuditOptions(stores=stores.names, timeout_seconds=60)
    with stores.syncing():
        stores.wait(deadline_seconds=120)
        with Writer(database), _altering(database):
            for _ in range(2):
                found = list(run_audit(stores.config, options, lambda: spark))
                assert found
                assert {record.verdict for record in found} <= {"equal", "undecided"}, found
        found = list(run_audit(stores.config, options, lambda: spark))
        assert {record.verdict for record in found} == {"equal"}, found
        _assert_column_added_again(stores, spark, options)
        with tampering_with(stores, "people", elasticsearch_url, redis_url) as tampering:
            hashed = hmac.new(b"salt", b"b7", "sha256").hexdigest()
            row_id = json.dumps(["7", hashed], separators=(",", ":"))
            assert tampering.redis.delete(tampering.key(row_id)) == 1
            tampering.produce({"a": 8, "b": hmac.new(b"salt", b"b8", "sha256").hexdigest()}, _lie)
            found = list(run_audit(stores.config, replace(options, tables=["people"], repair=True), lambda: spark))
            assert [(record.verdict, record.repaired) for record in found] == [("equal", 2), ("equal", 2)]
            stores.wait()
            assert json.loads(tampering.redis.hget(tampering.key(row_id), "row"))["a"] == 7
        found = list(run_audit(stores.config, replace(options, stores=()), lambda: spark))
        assert {(record.table, record.verdict) for record in found} == {
            ("public.items", "equal"),
            ("public.people", "equal"),
            ("public.wide", "equal"),
        }


def _assert_column_added_again(stores: StorePipeline, spark: SparkSession, options: AuditOptions) -> None:
    """The table is neither equal nor drift until it is copied: the topic has the dropped column's values under this
    name.
    """
    database = stores.pipeline.database
    database.execute("ALTER TABLE items ADD COLUMN back text")
    database.execute("INSERT INTO items VALUES (-1, 0, ''); UPDATE items SET back = 'old'")
    stores.wait()
    database.execute("ALTER TABLE items DROP COLUMN back")
    stores.wait()
    database.execute("ALTER TABLE items ADD COLUMN back text")
    for_items = replace(options, tables=["items"])
    found = list(run_audit(stores.config, for_items, lambda: spark))
    assert [record.verdict for record in found] == ["incomplete"] * 2, found
    assert all("column back was dropped and added again" in record.reason for record in found), found
    assert copy_due(stores.pipeline, spark).is_complete
    found = list(run_audit(stores.config, for_items, lambda: spark))
    assert [record.verdict for record in found] == ["equal"] * 2, found


def _lie(after: dict[str, Any]) -> None:
    after["email"] = "a lie"


@pytest.mark.slow
def test_a_store_that_gets_its_own_shape(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str
) -> None:
    """A store with a shape is compared with the shaped rows, and a repair writes shaped rows."""
    shape = {"public.t": {"where": "n > 10", "columns": ["id", "n"]}}
    stores = StorePipeline(
        make_pipeline(),
        spark,
        {"cache": {"kind": "redis", "url": redis_url, "shape": shape}},
    )
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text)")
    stores.pipeline.start()
    database.execute("INSERT INTO t SELECT i, i, 'v' FROM generate_series(1, 100) i")
    options = AuditOptions(stores=["cache"], timeout_seconds=60)
    with stores.syncing(), tampering_with(stores, "t", elasticsearch_url, redis_url) as tampering:
        stores.wait()
        (found,) = run_audit(stores.config, options, lambda: spark)
        assert (found.verdict, found.source_rows, found.store_rows) == ("equal", 100, 90)
        version = tampering.redis.hget(tampering.key(50), "version") or b""
        tampering.row(50, n=-1)
        tampering.redis.hset(tampering.key(5), mapping={"row": '{"id":5,"n":5}', "version": version})
        (found,) = run_audit(stores.config, options, lambda: spark)
        assert _differences([found], "cache") == {"50": "content", "5": "ghost"}
        (found,) = run_audit(stores.config, replace(options, repair=True), lambda: spark)
        assert (found.verdict, found.repaired) == ("equal", 2)
        assert json.loads(tampering.redis.hget(tampering.key(50), "row") or b"") == {"id": 50, "n": 50}

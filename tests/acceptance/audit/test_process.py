"""`tailrace audit` and `tailrace snapshot --keys` as processes: exit codes, output and effects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.audit.audit_log import read_audits
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline
from tests.harness.stores.tampering import tampering_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _filled(make_pipeline: MakePipeline) -> Pipeline:
    """A pipeline that streams, with 200 rows in table t."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 200) i")
    pipeline.fence(while_running=capture)
    return pipeline


def _with_stores(pipeline: Pipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str) -> StorePipeline:
    """Both stores, and an audit rate that lets a continuous audit begin at once."""
    stores = StorePipeline(
        pipeline,
        spark,
        {"search": {"kind": "elasticsearch", "url": elasticsearch_url}, "cache": {"kind": "redis", "url": redis_url}},
    )
    with pipeline.config.open("a") as config:
        config.write("[audit]\nrows_per_second = 100\n")
    return stores


@pytest.mark.parametrize("arguments", [(), ("cache", "--topic")], ids=["no store", "a store and --topic"])
def test_wrong_use_of_audit_exits_with_code_2(
    tailrace: StartProcess, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """`tailrace audit` without a store, or with a store and `--topic`, is wrong use, before the config is read."""
    audit = tailrace("audit", *arguments, "--config", str(tmp_path / "tailrace.toml"))
    audit.expect_exit(2, 60)
    assert "Name the stores to audit, or use --topic." in audit.errors


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_audit_exits_with_code_1_for_drift_and_0_after_a_repair(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str, tailrace: StartProcess
) -> None:
    """An audit names the missing row of one store and exits with code 1; `--repair` writes it and exits with 0."""
    pipeline = _filled(make_pipeline)
    stores = _with_stores(pipeline, spark, elasticsearch_url, redis_url)
    where = ("--config", str(pipeline.config))
    with stores.syncing(), tampering_with(stores, "t", elasticsearch_url, redis_url) as tampering:
        stores.assert_same("t")
        assert tampering.redis.delete(tampering.key(7)) == 1
        found = tailrace("audit", "cache", "search", "--json", *where)
        found.expect_exit(1, 240)
        audits = {each["store"]: each for each in json.loads(found.output)["audits"]}
        assert audits["search"]["verdict"] == "equal"
        assert [each["id"] for each in audits["cache"]["differences"]] == ["7"]
        repaired = tailrace("audit", "cache", "--repair", *where)
        repaired.expect_exit(0, 240)
        assert "1 repaired" in repaired.output
        stores.assert_same("t")


def test_a_snapshot_of_keys_publishes_existing_rows_and_deletes_the_others(
    make_pipeline: MakePipeline, tailrace: StartProcess
) -> None:
    """`tailrace snapshot --keys` publishes a row that exists, and a delete with its tombstone for one that does not."""
    pipeline = _filled(make_pipeline)
    before = len(pipeline.records("t"))
    where = ("--config", str(pipeline.config))
    copied = tailrace("snapshot", "--table", "t", "--keys", "7,9999", "--json", *where)
    copied.expect_exit(0, 120)
    assert json.loads(copied.output)["published"] == 2
    eventually(lambda: len(pipeline.records("t")) == before + 3, 30, "a row, a delete and its tombstone")
    pipeline.assert_same("t")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_continuous_audit_records_a_missing_row_and_ends_on_sigterm(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str, tailrace: StartProcess
) -> None:
    """`tailrace audit --continuous` records the missing row on the topic of audits, and SIGTERM ends it with code 0."""
    pipeline = _filled(make_pipeline)
    stores = _with_stores(pipeline, spark, elasticsearch_url, redis_url)

    def is_recorded() -> bool:
        sampled = [record for record in read_audits(stores.config) if record.sampled and record.store == "cache"]
        return any(each.id == "8" for record in sampled for each in record.differences)

    with stores.syncing(), tampering_with(stores, "t", elasticsearch_url, redis_url) as tampering:
        stores.assert_same("t")
        assert tampering.redis.delete(tampering.key(8)) == 1
        samples = tailrace("audit", "--continuous", "--config", str(pipeline.config))
        eventually(is_recorded, 120, f"a sample on {pipeline.prefix}.__audits")
        samples.terminate()
        samples.expect_exit(0, 60)

"""`tailrace audit` and `tailrace snapshot --keys` as processes: exit codes, output and effects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline
from tests.harness.stores.tampering import tampering_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_tell_and_mend(
    make_pipeline: MakePipeline,
    spark: SparkSession,
    elasticsearch_url: str,
    redis_url: str,
    tailrace: StartProcess,
) -> None:
    """1 for drift, 0 when it is mended, 2 for wrong use; keys copied anew; samples while it runs."""
    pipeline = make_pipeline()
    stores = StorePipeline(
        pipeline,
        spark,
        {"search": {"kind": "elasticsearch", "url": elasticsearch_url}, "cache": {"kind": "redis", "url": redis_url}},
    )
    with pipeline.config.open("a") as config:
        config.write("[audit]\nrows_per_second = 100\n")
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pipeline.start()
    database.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 200) i")
    where = ("--config", str(pipeline.config))
    with stores.syncing(), tampering_with(stores, "t", elasticsearch_url, redis_url) as tampering:
        stores.assert_same("t")
        tailrace("audit", *where).expect_exit(2, 60)
        tailrace("audit", "cache", "--topic", *where).expect_exit(2, 60)
        tampering.redis.delete(tampering.key(7))
        found = tailrace("audit", "cache", "search", "--json", *where)
        found.expect_exit(1, 240)
        audits = {each["store"]: each for each in json.loads(found.output)["audits"]}
        assert audits["search"]["verdict"] == "equal"
        assert [each["id"] for each in audits["cache"]["differences"]] == ["7"]
        mended = tailrace("audit", "cache", "--repair", *where)
        mended.expect_exit(0, 240)
        assert "1 repaired" in mended.output

        before = len(pipeline.records("t"))
        copied = tailrace("snapshot", "--table", "t", "--keys", "7,9999", "--json", *where)
        copied.expect_exit(0, 120)
        assert json.loads(copied.output)["published"] == 2
        eventually(lambda: len(pipeline.records("t")) == before + 3, 30, "a row, a delete and its tombstone")
        stores.assert_same("t")

        tampering.redis.delete(tampering.key(8))
        samples = tailrace("audit", "--continuous", *where)
        topic = f"{pipeline.prefix}.__audits"

        def is_told() -> bool:
            from cdc.audit.audit_log import read_audits  # noqa: PLC0415 - beside its use

            sampled = [record for record in read_audits(stores.config) if record.sampled and record.store == "cache"]
            return any(each.id == "8" for record in sampled for each in record.differences)

        eventually(is_told, 120, f"a sample on {topic}")
        samples.terminate()
        samples.expect_exit(0, 60)

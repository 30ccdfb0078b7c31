"""An audit without differences as the end of a test: `tailrace audit`'s own code on the run's Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cdc.audit.audit_records import TOPIC
from cdc.config import Config, load_config
from spark_jobs.audit.run import AuditOptions, run_audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assert_clean(config: Config | Path, spark: SparkSession, *stores: str) -> None:
    """These stores are what the source is, and so are the topics: an audit of a store tells what is wrong with either.

    Without stores, the topics. Capture and the stores' syncs must be running.
    """
    read = load_config(config) if isinstance(config, Path) else config
    found = list(run_audit(read, AuditOptions(stores=stores, timeout_seconds=60), lambda: spark))
    assert {record.store for record in found} == set(stores or (TOPIC,)), f"not everything was audited: {found}"
    wrong = [record for record in found if record.verdict != "equal"]
    assert not wrong, wrong

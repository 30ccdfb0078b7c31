"""A clean audit, as the end of a test: `tailrace audit` on the run's Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.config import Config
from spark_jobs.audit.run import Options, run_audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assert_clean(config: Config, spark: SparkSession, *stores: str) -> None:
    """These stores, and the topics, are what the source is. Capture and the stores' syncs must be running."""
    for names in (stores, ()) if stores else ((),):
        found = list(run_audit(config, Options(stores=names, timeout_seconds=60), lambda: spark))
        assert found, "nothing was audited"
        wrong = [record for record in found if record.verdict != "equal"]
        assert not wrong, wrong

"""The check of Spark's authentication. It reads the config only, and does not start Spark."""

from __future__ import annotations

from collections.abc import Iterator

from cdc.check.findings import Finding, ok, warn
from cdc.config import Config
from cdc.config.model import AUTHENTICATION_REMEDY

PLACE = "spark"


def judge_spark(config: Config) -> Iterator[Finding]:
    """Yield the finding about the secret of Spark's connections.

    Without a secret, any process that can connect to Spark can read the tasks, which contain passwords. In local mode
    Spark generates the secret itself, so there is no finding.
    """
    if config.spark.authenticates and not config.spark.is_local:
        yield ok(PLACE, "Spark's own connections are authenticated")
    elif not config.spark.authenticates:
        yield warn(
            PLACE,
            f"Jobs on {config.spark.master} contain passwords, and the config has no secret for Spark's connections.",
            AUTHENTICATION_REMEDY,
        )

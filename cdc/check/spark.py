"""Spark, as far as the config says it: whether its ports ask for a secret. Nothing is started."""

from __future__ import annotations

from collections.abc import Iterator

from cdc.check.findings import Finding, ok, warn
from cdc.config import Config
from cdc.config.model import AUTHENTICATION_REMEDY

PLACE = "spark"


def judge_spark(config: Config) -> Iterator[Finding]:
    """A process that may connect without a secret gets the tasks, and the passwords in them.

    In the driver's own process Spark makes the secret itself: there is nothing to look at.
    """
    if config.spark.authenticates and not config.spark.is_local:
        yield ok(PLACE, "Spark's own connections are authenticated")
    elif not config.spark.authenticates:
        yield warn(
            PLACE,
            f"Jobs on {config.spark.master} carry passwords, and the config has no secret for Spark's connections.",
            AUTHENTICATION_REMEDY,
        )

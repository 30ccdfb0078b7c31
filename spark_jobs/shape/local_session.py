"""A Spark session for a short job: the one that already runs in this process, or a temporary one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.config import Config
from spark_jobs.session.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def local_session(config: Config, app_name: str) -> Iterator[SparkSession]:
    """Yield the running session, or start a local one and stop it at the end.

    The job is small, so the session is local whichever master the config names.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - takes half a second: only a job needs it
    from pyspark.sql import SparkSession as Session  # noqa: PLC0415 - as above

    try:
        running = Session.active()
    except PySparkRuntimeError:  # there is none
        session = spark_session(replace(config.spark, master="local[1]"), app_name)
    else:
        yield running
        return
    try:
        yield session
    finally:
        session.stop()

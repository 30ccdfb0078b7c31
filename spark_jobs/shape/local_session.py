"""A Spark session for a short job: the one that already runs in this process, or a temporary one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from cdc.config import Config
from spark_jobs.session.spark_session import spark_session


@contextmanager
def local_session(config: Config, app_name: str) -> Iterator[SparkSession]:
    """Yield the running session, or start a local one and stop it at the end.

    The job is small, so the session is local whichever master the config names.
    """
    try:
        running = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        session = spark_session(replace(config.spark, master="local[1]"), app_name)
    else:
        yield running
        return
    try:
        yield session
    finally:
        session.stop()

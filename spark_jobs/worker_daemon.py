"""The process that Spark forks its Python workers from, with what they need loaded already.

Otherwise every new worker would spend its first seconds on imports, and the rows of its first batch would wait for it.
"""

from __future__ import annotations

import confluent_kafka  # noqa: F401
import elasticsearch  # noqa: F401
import pyarrow  # noqa: F401
import redis  # noqa: F401
from pyspark.daemon import manager

import spark_jobs.audit.comparing
import spark_jobs.stores.tasks  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]

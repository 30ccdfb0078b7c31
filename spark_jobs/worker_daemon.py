"""The process that Spark forks its Python workers from, with what they need loaded already.

Otherwise every new worker would spend its first seconds on imports, and the rows of its first batch would wait for it.
"""

from __future__ import annotations

import gc
import zipimport

import confluent_kafka  # noqa: F401
import elasticsearch  # noqa: F401
import pyarrow  # noqa: F401
import redis  # noqa: F401
from pyspark.daemon import manager

import spark_jobs.audit.comparing
import spark_jobs.audit.topic_share
import spark_jobs.stores.tasks  # noqa: F401

# Before each task, a worker has every importer look at its files again; Spark puts its own jar on the path, and to read
# that one's list of files takes longer than a small batch. None of them changes while a worker lives.
zipimport.zipimporter.invalidate_caches = lambda _: None  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    gc.freeze()  # after each task a worker collects garbage: it need not look at what was loaded here
    manager()  # type: ignore[no-untyped-call]

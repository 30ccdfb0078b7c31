"""The process that Spark forks its Python workers from, with what they need loaded already.

Otherwise every new worker would spend its first seconds on imports, and the rows of its first batch would wait for it.
A job that knows what its workers need says so in their environment: the less there is, the sooner they begin.
"""

from __future__ import annotations

import gc
import os
import zipimport
from importlib import import_module
from typing import Final

from pyspark.daemon import manager

#: Names of modules, by spaces.
MODULES_VARIABLE: Final = "TAILRACE_WORKER_MODULES"
_USUAL: Final = (
    "confluent_kafka",
    "elasticsearch",
    "pyarrow",
    "redis",
    "spark_jobs.audit.comparing",
    "spark_jobs.audit.topic_share",
    "spark_jobs.stores.live_rows",
    "spark_jobs.stores.range_tasks",
)

# Before each task, a worker has every importer look at its files again; Spark puts its own jar on the path, and to read
# that one's list of files takes longer than a small batch. None of them changes while a worker lives.
zipimport.zipimporter.invalidate_caches = lambda _: None  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    for module in os.environ.get(MODULES_VARIABLE, "").split() or _USUAL:
        import_module(module)
    gc.freeze()  # after each task a worker collects garbage: it need not look at what was loaded here
    manager()  # type: ignore[no-untyped-call]

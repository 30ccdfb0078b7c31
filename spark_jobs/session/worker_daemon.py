"""The process that Spark forks its Python workers from, with what they need loaded already.

Otherwise every new worker would spend its first seconds on imports, and the rows of its first batch would wait for it.
A job that knows what its workers need says so in their environment: the less there is, the sooner they begin.
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from importlib import import_module
from pathlib import Path
from typing import Final

#: Names of modules, by spaces.
MODULES_VARIABLE: Final = "TAILRACE_WORKER_MODULES"
_USUAL: Final = (
    "confluent_kafka",
    "elasticsearch",
    "pyarrow",
    "redis",
    "spark_jobs.audit.group_comparison",
    "spark_jobs.audit.topic_share",
    "spark_jobs.tasks.row_counts",
    "spark_jobs.tasks.range_tasks",
)


def without_copies(path: list[str]) -> list[str]:
    """An installed pyspark carries copies of itself and of py4j, and Spark puts those in front.

    They are zip files: everything in them would be compiled anew at each start.
    """
    places = {os.path.realpath(each) for each in path if each}
    return [each for each in path if not (each.endswith(".zip") and _installation(each) in places)]


def _installation(file: str) -> str:
    """The folder that has the package `pyspark`, if this is `pyspark/python/lib/*.zip`."""
    parents = Path(os.path.realpath(file)).parents
    return str(parents[3]) if parents[0].match("pyspark/python/lib") else ""


def main() -> None:
    sys.path[:] = without_copies(sys.path)
    from pyspark.daemon import manager  # noqa: PLC0415 - from where it is found now

    # Before each task, a worker has every importer look at its files again; Spark puts its own jar on the path, and to
    # read that one's list of files takes longer than a small batch. None of them changes while a worker lives.
    zipimport.zipimporter.invalidate_caches = lambda _: None  # type: ignore[method-assign, assignment]
    for module in os.environ.get(MODULES_VARIABLE, "").split() or _USUAL:
        import_module(module)
    gc.freeze()  # after each task a worker collects garbage: it need not look at what was loaded here
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

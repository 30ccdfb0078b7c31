"""The process that Spark forks its Python workers from. It imports the workers' modules before it forks.

Otherwise every new worker would spend its first seconds on imports, and delay the rows of its first batch. A job can
list the modules that its workers need in an environment variable: fewer modules mean a shorter start.
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from importlib import import_module
from pathlib import Path
from typing import Final

#: The environment variable with the names of modules, separated by spaces.
MODULES_VARIABLE: Final = "TAILRACE_WORKER_MODULES"
_USUAL: Final = (
    "confluent_kafka",
    "elasticsearch",
    "pyarrow",
    "redis",
    "spark_jobs.audit.group_comparison",
    "spark_jobs.audit.topic_read_task",
    "spark_jobs.tasks.row_counts",
    "spark_jobs.tasks.range_tasks",
)


def without_copies(path: list[str]) -> list[str]:
    """Return the path without the zip files in which an installed pyspark ships copies of itself and of py4j.

    Spark puts these zip files first on the path. Python would compile their modules again at each start.
    """
    places = {os.path.realpath(each) for each in path if each}
    return [each for each in path if not (each.endswith(".zip") and _installation(each) in places)]


def _installation(file: str) -> str:
    """Return the folder that holds the package `pyspark` if the file is `pyspark/python/lib/*.zip`, else ""."""
    parents = Path(os.path.realpath(file)).parents
    return str(parents[3]) if parents[0].match("pyspark/python/lib") else ""


def main() -> None:
    """Import the workers' modules, then run PySpark's daemon."""
    sys.path[:] = without_copies(sys.path)
    from pyspark.daemon import manager  # noqa: PLC0415 - must be found on the changed path

    # Before each task, a worker invalidates the importers' caches. Spark puts its own jar on the path, and reading that
    # jar's list of files takes longer than a small batch. None of these files changes while a worker runs.
    zipimport.zipimporter.invalidate_caches = lambda _: None  # type: ignore[method-assign, assignment]
    for module in os.environ.get(MODULES_VARIABLE, "").split() or _USUAL:
        import_module(module)
    gc.freeze()  # a worker collects garbage after each task; the modules loaded here need not be scanned
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

"""`make bench-warehouse`: what a batch costs as the table grows, bootstrap against a plain Spark write, sync, upkeep.

Spark runs in this process; for the parts with a topic there is one fresh local stack. Progress goes to standard error;
the last line of standard output is JSON. README.md beside this file says how to read it. No figure is asserted here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cdc.config import IcebergConfig, SparkConfig
from cdc.config.settings import Location
from cdc.secrets import SecretOptions
from spark_jobs.session.spark_session import spark_session
from tests.bench.capture import QUIET_LOAD, _names, say
from tests.bench.warehouse_growth import Growth
from tests.bench.warehouse_topics import topic_figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("growth", "bootstrap", "sync")
_OPTIONS: Final = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
}


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is stopped on the way out
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say little")
    folder = Path(tempfile.mkdtemp(prefix="tailrace-warehouse-"))
    spark = _session(folder)
    figures: dict[str, object] = {}
    try:
        if "growth" in options.only:
            figures |= Growth(spark, folder, options.scale).run()
        if {"bootstrap", "sync"} & set(options.only):
            figures |= topic_figures(spark, folder, options.scale, options.only)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    figures["settings"] = {
        "scale": options.scale,
        "cpus": os.cpu_count(),
        "load_at_start": round(load, 2),
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(figures))


def _session(folder: Path) -> SparkSession:
    warehouse = IcebergConfig(path=Location(str(folder / "unused")))
    return spark_session(SparkConfig(options=SecretOptions(_OPTIONS)), "tailrace-bench-warehouse", warehouse=warehouse)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.warehouse", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything, 1 = as documented")
    parser.add_argument("--only", type=_names(PARTS), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The Spark options of `tailrace sync`, and the user's own."""

from __future__ import annotations

from pathlib import Path

from cdc.config import Config, load_config
from spark_jobs.sync.sync import driver_config

_STORES = {
    "cache": '[stores.cache]\nkind = "redis"\nurl = "redis://localhost/0"\n',
    "warehouse": '[stores.warehouse]\nkind = "iceberg"\npath = "lake"\n',
}


def _config(folder: Path, rest: str = "") -> Config:
    file = folder / "tailrace.toml"
    source = '[source]\ndsn = "postgresql://localhost/shop"\n[kafka]\nbootstrap = "localhost:9092"\nprefix = "shop"\n'
    file.write_text(source + "".join(_STORES.values()) + rest)
    return load_config(file)


def test_java_compiles_quickly_where_only_small_batches_run(tmp_path: Path) -> None:
    """Fast JVM compilation is set except for a driver that merges into a warehouse; the user's option wins."""
    user = '[spark.options]\n"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=4"\n'
    name = "spark.driver.extraJavaOptions"
    assert driver_config(_config(tmp_path), ["cache"]).spark.options[name] == "-XX:TieredStopAtLevel=1"
    assert name not in driver_config(_config(tmp_path), ["cache", "warehouse"]).spark.options
    told = driver_config(_config(tmp_path, user), ["cache"]).spark.options[name]
    assert told == "-XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4"


def test_every_store_has_a_place_for_its_tasks(tmp_path: Path) -> None:
    """Every store has a task slot on machines with few cores; a master that the user names is kept."""
    config = _config(tmp_path)
    places = sum(config.stores[name].parallelism for name in _STORES)
    master = driver_config(config, list(_STORES)).spark.master
    assert int(master.removeprefix("local[").removesuffix("]")) >= places
    named = _config(tmp_path, '[spark]\nmaster = "spark://somewhere:7077"\n')
    assert driver_config(named, ["cache"]).spark.master == "spark://somewhere:7077"

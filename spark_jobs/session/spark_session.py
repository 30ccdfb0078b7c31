"""Starts Spark sessions, with packages, catalog, time zone and logging configured.

Jobs receive a session as an argument. No other module starts one, and importing this module does not either.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from cdc.config import Config, IcebergConfig, SparkConfig
from cdc.config.model import AUTHENTICATION_REMEDY
from cdc.errors import UsageError
from cdc.logs import get_logger
from deploy.artifacts import Artifact, cache_folder, fetch
from deploy.java import Java, find_java
from deploy.progress import ProgressDisplay, Quiet
from deploy.versions import SPARK_PACKAGES
from sinks.iceberg.catalog import prepare_sqlite, sqlite_file
from spark_jobs.session.catalog import catalog_settings

log = get_logger("spark")

_AUTHENTICATE: Final = "spark.authenticate"
_LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_LISTS: Final = {
    "spark.jars": ",",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.driver.extraJavaOptions": " ",
    "spark.sql.extensions": ",",
}


def spark_session(
    settings: SparkConfig | Config,
    app_name: str,
    *,
    warehouse: IcebergConfig | None = None,
    progress: ProgressDisplay | None = None,
) -> SparkSession:
    """Start the process's Spark session, or return the running one, with the warehouse's catalog set.

    The warehouse is the given one, or the config's if the config has exactly one. A remote master (`spark://`,
    `k8s://`) gets the packages from this process. This machine needs Java in any case.
    """
    if isinstance(settings, Config):
        warehouse = warehouse or _only_warehouse(settings)
        settings = settings.spark
    java = find_java()
    properties = session_properties(settings, app_name, package_jars(progress or Quiet()))
    with _launching(java, properties, local=settings.is_local):
        session = SparkSession.builder.getOrCreate()
    # Read from the session, because the machine's spark-defaults.conf may set it as well.
    if session.sparkContext.getConf().get(_AUTHENTICATE, "false") != "true":
        log.warning("spark_not_authenticated", master=settings.master, remedy=AUTHENTICATION_REMEDY)
    if warehouse is not None:
        use_warehouse(session, warehouse)
    return session


def start_workers(session: SparkSession) -> None:
    """Start the Python workers in the background while the driver prepares; their imports take a second."""

    def start() -> None:
        context = session.sparkContext
        with suppress(Exception):  # the job that needs the workers raises the same error
            context.parallelize([], context.defaultParallelism).foreachPartition(_nothing)

    threading.Thread(target=start, name="tailrace-start-workers", daemon=True).start()


def _nothing(_: Iterable[object]) -> None:
    """Do nothing. It is at the top level because Spark pickles it by name."""


def package_jars(progress: ProgressDisplay, cache: Path | None = None) -> list[Path]:
    """Return the packages' jars. They are downloaded once per machine; later sessions need no network."""
    packages = Artifact(label="spark packages", coordinates=SPARK_PACKAGES, unpack=_keep_what_spark_lacks)
    folder = fetch(packages, cache=cache or cache_folder(os.environ), progress=progress)
    return sorted(folder.glob("*.jar"))


def session_properties(settings: SparkConfig, app_name: str, jars: list[Path]) -> dict[str, str]:
    """Return all properties of the session.

    A user's option replaces Tailrace's value, or is appended to it if the property is a list.
    """
    own = {
        "spark.app.name": app_name,
        "spark.master": settings.master,
        # On the class path from the start, because JDBC does not find a driver that is added later.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -Duser.timezone=UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.daemon.module": "spark_jobs.session.worker_daemon",
        # By default Spark's own catalog creates a folder in the working directory.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "tailrace-spark-warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.is_local:
        # A laptop's host name often does not resolve, or resolves to a network that is unavailable after a suspend.
        own |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    else:
        own["spark.jars"] = ",".join(str(jar) for jar in jars)
    own |= _authentication(settings)
    added = {
        name: f"{own[name]}{separator}{settings.options[name]}"
        for name, separator in _LISTS.items()
        if own.get(name) and settings.options.get(name)
    }
    return own | dict(settings.options) | added


def _authentication(settings: SparkConfig) -> dict[str, str]:
    """Return the options that authenticate Spark's connections, and encrypt them if they cross machines.

    Tasks contain the config with its passwords, and without authentication Spark sends tasks to any process that
    connects.
    """
    if not settings.authenticates:
        return {}
    return {_AUTHENTICATE: "true", **({} if settings.is_local else {"spark.network.crypto.enabled": "true"})}


def _only_warehouse(config: Config) -> IcebergConfig | None:
    found = {name: store for name, store in config.stores.items() if isinstance(store, IcebergConfig)}
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise UsageError(f"The config has several warehouses ({names}).", remedy="Name the one that this job uses.")
    return next(iter(found.values()), None)


def warehouse_session(spark: SparkSession, warehouse: IcebergConfig) -> SparkSession:
    """Return a new session in the same application, with this warehouse's catalog.

    Each warehouse needs its own session, because a session keeps the first catalog that it used.
    """
    session = spark.newSession()
    use_warehouse(session, warehouse)
    return session


def use_warehouse(session: SparkSession, warehouse: IcebergConfig) -> None:
    """Set the catalog `tailrace` of this session. A session that is made from it later does not inherit the catalog."""
    file = sqlite_file(warehouse)
    if file is not None:
        prepare_sqlite(file)
    for name, value in catalog_settings(warehouse).items():
        session.conf.set(name, value)


def _keep_what_spark_lacks(downloaded: Path, ready: Path) -> None:
    """Keep only the jars that Spark does not ship. A second copy of Hadoop, Scala and the like breaks class loading."""
    shipped = {_artifact(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    for jar in downloaded.glob("*.jar"):
        if _artifact(jar) not in shipped:
            jar.rename(ready / jar.name)


def _artifact(jar: Path) -> str:
    """Return a jar's name without its version: `kafka-clients` for `kafka-clients-3.9.0.jar`.

    The version is the first part that starts with a digit and contains a dot.
    """
    words = jar.stem.split("-")
    named = next(
        (place for place, word in enumerate(words) if place and word[:1].isdigit() and "." in word), len(words)
    )
    return "-".join(words[:named])


@contextmanager
def _launching(java: Java, properties: Mapping[str, str], *, local: bool) -> Iterator[None]:
    """Set the environment that the JVM is launched in, and restore the previous one when the block ends.

    The properties are passed in a private file, because every user of the machine can read a command line.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".properties", encoding="ascii") as file:
        file.writelines(f"{_escape(name)}={_escape(value)}\n" for name, value in properties.items())
        file.flush()
        launch = {
            "JAVA_HOME": str(java.home),
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(file.name)} --load-spark-defaults pyspark-shell",
        }
        # Otherwise workers run the first `python3` on the PATH, which may not have Tailrace installed. (Spark reads its
        # own property only when spark-submit starts the driver.)
        python = properties.get("spark.pyspark.python") or (sys.executable if local else None)
        if python is not None:
            launch["PYSPARK_PYTHON"] = python
            launch["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if local and "SPARK_LOCAL_IP" not in os.environ:
            launch["SPARK_LOCAL_IP"] = _LOOPBACK  # otherwise Spark's web UI, if enabled, listens on every network
        before = {name: os.environ.get(name) for name in launch}
        os.environ.update(launch)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _escape(text: str) -> str:
    """Escape a text for a file that java.util.Properties reads."""
    escaped = "".join(f"\\{letter}" if letter in "\\=:#! " else letter for letter in text)
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "".join(
        letter if letter.isascii() else "".join(f"\\u{unit:04x}" for unit in _utf16(letter)) for letter in escaped
    )


def _utf16(letter: str) -> list[int]:
    data = letter.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]

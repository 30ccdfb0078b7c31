"""Fixtures for every test: real servers on demand, and a database, prefix and processes of the test's own."""

from __future__ import annotations

import gc
import logging
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from cdc.config import IcebergConfig, SparkConfig
from cdc.config.settings import Location
from cdc.secrets import SecretOptions
from deploy.stack import Stack
from tests.harness import distribution
from tests.harness.kafka.topics import delete_topics
from tests.harness.network.proxy import Proxy
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, StartProcess, tailrace_argv
from tests.harness.servers import cleanup
from tests.harness.servers.shared_servers import Servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite("cdc.stores.testing")

_FIXTURES = {
    "postgres": "postgres_url",
    "kafka": "kafka_bootstrap",
    "elasticsearch": "elasticsearch_url",
    "opensearch": "opensearch_url",
    "redis": "redis_url",
}
_PROCESSES = pytest.StashKey[list[Process]]()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The run's servers, or this worker's; ask for one of the fixtures below instead, which start what they name."""
    running = Servers(os.environ, _expected(request.session))
    try:
        yield running
    finally:
        running.close()


def _expected(session: pytest.Session) -> list[str]:
    """The servers that tests of this process will ask for; a worker cannot know whether it gets those of a group."""
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if hasattr(session.config, "workerinput"):
        asked -= set(distribution.DEAR)
    return [name for name, fixture in _FIXTURES.items() if fixture in asked]


@pytest.fixture(scope="session")
def stack(servers: Servers) -> Stack:
    """For tests that stop, freeze and start servers; they leave them as they found them."""
    return servers.stack


@pytest.fixture(scope="session")
def postgres_url(servers: Servers) -> str:
    """The server's maintenance database, as superuser."""
    return servers.server("postgres").address


@pytest.fixture(scope="session")
def kafka_bootstrap(servers: Servers) -> str:
    return servers.server("kafka").address


@pytest.fixture(scope="session")
def elasticsearch_url(servers: Servers) -> str:
    return servers.server("elasticsearch").address


@pytest.fixture(scope="session")
def opensearch_url(servers: Servers) -> str:
    return servers.server("opensearch").address


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    return servers.server("redis").address


@pytest.fixture
def database(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database, dropped afterwards with its slots."""
    fresh = Database(postgres_url, request.node.name)
    try:
        yield fresh
    finally:
        fresh.drop()


@pytest.fixture
def postgres_dsn(database: Database) -> str:
    return database.dsn


@pytest.fixture
def prefix(servers: Servers, request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix of the test's own for topics, indices and keys; what is under it goes afterwards."""
    own = f"t{uuid.uuid4().hex[:10]}"
    yield own
    for name, delete in (
        ("kafka", delete_topics),
        ("elasticsearch", cleanup.delete_indices),
        ("opensearch", cleanup.delete_indices),
        ("redis", cleanup.delete_keys),
    ):
        if _FIXTURES[name] in request.fixturenames:
            delete(servers.server(name).address, own)


@pytest.fixture
def start_process(request: pytest.FixtureRequest) -> Iterator[StartProcess]:
    """Start real processes; each is killed afterwards, and shown where the test fails."""
    processes = request.node.stash.setdefault(_PROCESSES, [])

    def start(*argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
        process = Process(argv, env=env, cwd=cwd)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def tailrace(start_process: StartProcess) -> StartProcess:
    """Start the command under test: `tailrace("stack", "status")`."""

    def start(*args: str, **settings: Any) -> Process:
        return start_process(*tailrace_argv(*args), **settings)

    return start


@pytest.fixture
def start_proxy() -> Iterator[Callable[[str, int], Proxy]]:
    """Put a proxy in front of a server: `start_proxy(host, port)`."""
    proxies: list[Proxy] = []

    def start(host: str, port: int) -> Proxy:
        proxies.append(Proxy(host, port))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> IcebergConfig:
    """The run's Iceberg warehouse; a test uses a namespace of its own in it."""
    return IcebergConfig(path=Location(tmp_path_factory.mktemp("warehouse")))


@pytest.fixture(scope="session")
def run_spark(warehouse: IcebergConfig) -> Iterator[SparkSession]:
    """The run's one Spark session; tests ask for `spark`."""
    from spark_jobs.session.spark_session import spark_session  # noqa: PLC0415 - most tests run without Spark

    # One session serves hundreds of tests, some with texts of 20 million characters. On an OutOfMemoryError in a
    # task Spark ends the whole JVM, and every later test fails with it.
    memory = {"spark.driver.memory": "2g"}
    quick = SecretOptions({"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"} | memory)
    session = spark_session(SparkConfig(master="local[2]", options=quick), "tailrace-tests", warehouse=warehouse)
    yield session
    session.stop()


@pytest.fixture
def spark(run_spark: SparkSession) -> Iterator[SparkSession]:
    """The run's Spark session, with the warehouse's catalog."""
    yield run_spark
    gc.collect()  # what pyspark left open is found here, under the filter below, and not in another test


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.register_profile(
        "untimed", hypothesis.settings(), deadline=None
    )  # no test says how long something may take
    hypothesis.settings.load_profile("untimed")
    config.pluginmanager.register(distribution.plugin(config))
    # Its errors hold the sockets of tries that failed, which stay open; pytest would keep them to the end.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    # A run in the background of a script ignores Ctrl-C, and the processes under test would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pyspark leaves the socket of each `collect()` to the garbage collector; our own code may not."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the test's processes said, wherever the test failed."""
    report = yield
    if report.failed:
        for process in item.stash.get(_PROCESSES, []):
            report.sections.append((f"process {process.pid}", process.transcript()))
    return report

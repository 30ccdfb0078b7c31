"""Fixtures for tests with real processes from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.stack import open_stack
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database
from tests.harness.postgres.slow_commits import SlowCommits
from tests.harness.processes.process import StartProcess
from tests.harness.servers.dedicated_postgres import OwnPostgres


@pytest.fixture
def old_database(tmp_path: Path) -> Iterator[Database]:
    """A database on a dedicated server of the oldest supported major version."""
    stack = open_stack(tmp_path / "stack", postgres_major=14, postgres_settings={"fsync": "off"})
    stack.up(["postgres"])
    try:
        database = Database(stack.server("postgres").address, "postgres14")
        yield database
        database.drop()
    finally:
        stack.down(wipe=True)


@pytest.fixture
def make_pipeline(
    database: Database, kafka_bootstrap: str, prefix: str, tmp_path: Path, tailrace: StartProcess
) -> MakePipeline:
    """The test's capture pipeline; the arguments are those of `Pipeline.configure`."""

    def make(**settings: Any) -> Pipeline:
        pipeline = Pipeline(
            database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace
        )
        pipeline.configure(**settings)
        return pipeline

    return make


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    """A dedicated server with a small WAL limit, shared by the module, to be restored or to invalidate a slot."""
    server = OwnPostgres(tmp_path_factory.mktemp("own"), wal_keep_size="0", min_wal_size="32MB", max_wal_size="48MB")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own_pipeline(
    own: OwnPostgres,
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    request: pytest.FixtureRequest,
) -> Iterator[Pipeline]:
    """A pipeline on that server, in the test's own database."""
    database = Database(own.dsn, request.node.name)
    made = Pipeline(database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
    made.configure()
    yield made
    database.drop()


@pytest.fixture
def slow_commits(postgres_url: str, database: Database) -> Iterator[SlowCommits]:
    """Slow commits on the run's server, in the test's own database."""
    slow = SlowCommits(postgres_url, database)
    yield slow
    slow.close()


@pytest.fixture
def replacement(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on another, fresh server, whose LSNs start low."""
    server = OwnPostgres(tmp_path / "replacement")
    try:
        database = Database(server.dsn, request.node.name)
        yield database
        database.drop()
    finally:
        server.close()


@pytest.fixture
def every_store(redis_url: str, elasticsearch_url: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The sections of one store of each kind."""
    return {
        "cache": {"kind": "redis", "url": redis_url},
        "search": {"kind": "elasticsearch", "url": elasticsearch_url},
        "warehouse": {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 500},
    }

"""Fixtures for tests with real processes from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.stack import open_stack
from tests.harness.database import Database
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.process import StartProcess


@pytest.fixture
def old_database(tmp_path: Path) -> Iterator[Database]:
    """In a server of its own, of the oldest major that we support."""
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

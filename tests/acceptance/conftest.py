"""Fixtures for tests with real processes from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.database import Database
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.process import StartProcess


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

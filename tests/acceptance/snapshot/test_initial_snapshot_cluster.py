"""The initial snapshot on a real Spark cluster with a standalone master and two workers, one of which loses its
executor.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.servers.spark_cluster import SparkCluster
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, copies, wait_for_hold

PASSWORD = "open-sesame-7313"  # the test's server asks for none, and takes any


def _chunks(process: Process) -> int:
    lines = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    return max((line["chunks"] for line in lines if line["event"] == "progress"), default=0)


@pytest.mark.slow
def test_an_executor_killed_on_the_way(
    make_pipeline: MakePipeline, tailrace: StartProcess, start_process: StartProcess, tmp_path: Path
) -> None:
    """Chunks of a killed executor run on another one, and each row is there once.

    The cluster requires the configured secret; neither it nor the driver's password is in a log.
    """
    pipeline = make_pipeline(
        source={"password": PASSWORD}, snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 8000, "connections": 2}
    )
    pipeline.database.execute("CREATE TABLE large (id int PRIMARY KEY, a text)")
    pipeline.database.execute("INSERT INTO large SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i")
    cluster = SparkCluster(start_process, tmp_path)
    with pipeline.config.open("a") as config:
        config.write(cluster.settings())
    capture = wait_for_hold(pipeline)
    driver = tailrace("snapshot", "--json", "--config", str(pipeline.config))
    driver.wait_for(lambda: _chunks(driver) >= 2, 240, "two finished chunks")
    assert len(cluster.executors()) == 2
    killed = cluster.kill_an_executor()
    eventually(lambda: killed not in cluster.executors() and len(cluster.executors()) == 2, 120, "another executor")
    driver.expect_exit(0, 300)
    assert [copy.state for copy in copies(pipeline)] == ["complete"]
    pipeline.database.execute("DELETE FROM large WHERE id <= 10")
    records = pipeline.assert_same("large", while_running=capture)
    assert sum(record.op == "r" for record in records["large"]) == 100_000
    said = {"driver": driver.transcript(), "capture": capture.transcript(), **cluster.said()}
    assert len(said) > 4  # executors have written, too
    assert [who for who, text in said.items() if PASSWORD in text or cluster.secret in text] == []
    assert "spark_not_authenticated" not in driver.transcript()

"""`tailrace sync` as a process: killed while it works, started again, stopped."""

from __future__ import annotations

import json

import pytest

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import StartProcess
from tests.harness.stores.store_pipeline import StorePipeline


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_and_start_again_lose_and_double_nothing(
    make_pipeline: MakePipeline, tailrace: StartProcess, elasticsearch_url: str, redis_url: str
) -> None:
    """After `kill -9` between and within batches nothing is lost or duplicated, and SIGTERM ends the sync with exit
    code 0.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(
        pipeline,
        None,  # type: ignore[arg-type]  # the session is the process's own
        {"search": {"kind": "elasticsearch", "url": elasticsearch_url}, "cache": {"kind": "redis", "url": redis_url}},
    )
    config = ("--config", str(pipeline.config))
    pipeline.start()
    for number in range(2):
        sync = tailrace("sync", *config)
        for step in range(20):
            database.execute(
                "INSERT INTO t SELECT i, %s FROM generate_series(1, 500) i"
                " ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                [f"{number} {step}"],
            )
            database.execute("DELETE FROM t WHERE id %% 7 = %s", [step % 7])
        sync.wait_for_line("batch_applied", 240)
        database.execute("UPDATE t SET v = v || ' more'")
        sync.kill()
    sync = tailrace("sync", "search", "cache", *config)
    stores.assert_same("t", deadline_seconds=240)
    lag = tailrace("lag", "--json", *config)
    lag.expect_exit(0, 60)
    assert {each["name"]: each["records"] for each in json.loads(lag.output)["stores"]} == {"search": 0, "cache": 0}
    wait = tailrace("wait", "search", "cache", "--lsn", str(database.lsn()), "--timeout", "60", *config)
    wait.expect_exit(0, 90)
    never = tailrace("wait", "search", "--lsn", "FFFFFF/0", "--timeout", "0.5", *config)
    never.expect_exit(1, 60)
    parked = tailrace("parked", "list", *config)
    parked.expect_exit(0, 60)
    sync.terminate()
    sync.expect_exit(0, 90)

"""`tailrace run` with real processes: killed parts, refusals, a clean stop, and no orphans."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import psutil
import pytest

from cdc.config import load_config
from cdc.demo.comparison import compare_all
from deploy.stack import Stack
from tests.harness.kafka.topics import delete_topic
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline


def _state(run: Process) -> dict[str, Any]:
    """The newest line of `--json`; {} before the first."""
    for line in reversed(run.output.splitlines()):
        if line.startswith('{"event": "state"') and line.endswith("}"):
            state: dict[str, Any] = json.loads(line)
            return state
    return {}


def _part(run: Process, name: str) -> dict[str, Any]:
    return next((part for part in _state(run).get("parts", ()) if part["name"] == name), {})


def _wait_for_part(run: Process, name: str, condition: str, deadline_seconds: float = 90) -> dict[str, Any]:
    run.wait_for(lambda: _part(run, name).get("condition") == condition, deadline_seconds, f"{name} to be {condition}")
    return _part(run, name)


def _family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that still run; a dead orphan that was not reaped keeps its entry."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def _wait_until_gone(family: list[psutil.Process]) -> None:
    eventually(lambda: not _alive(family), 60, f"the end of {family}")


def _kill_part(run: Process, name: str) -> int:
    """Kill a part with SIGKILL; returns the pid of the process that replaces it."""
    pid: int = _wait_for_part(run, name, "running")["pid"]
    os.kill(pid, SIGKILL)
    run.wait_for(lambda: _part(run, name).get("pid") not in (None, pid), 90, f"{name} to be started again")
    return int(_part(run, name)["pid"])


def _start(pipeline: Pipeline, tailrace: StartProcess) -> Process:
    return tailrace("run", "--json", "--config", str(pipeline.config))


def test_a_killed_capture_is_started_again_and_catches_up(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """After `kill -9` of capture a new one catches up, the slot's lag is shown, and SIGTERM ends all with exit code
    0.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = _start(pipeline, tailrace)
    run.wait_for(lambda: (_state(run).get("slot") or {}).get("confirmed"), 90, "the slot's position")
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 100) i")
    pipeline.fence(while_running=run)
    _kill_part(run, "capture")
    pipeline.database.execute("UPDATE t SET v = 'two'; DELETE FROM t WHERE id > 50")
    pipeline.assert_same("t", while_running=run)
    assert _part(run, "capture")["restarts"] == 1
    family = _family(run.pid)
    assert len(family) == 2
    run.terminate()
    run.expect_exit(0, 60)
    assert not _alive(family)
    assert all(json.loads(line) for line in run.errors.splitlines())


def test_when_every_part_refuses_so_does_run(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """When the only part refuses, run starts it once and exits with code 3, the reason and the remedy."""
    pipeline = make_pipeline(source={"tables": ["public.nowhere"]})
    run = _start(pipeline, tailrace)
    run.expect_exit(3, 90)
    refused = _part(run, "capture")
    assert refused["condition"] == "refused"
    assert "public.nowhere" in refused["note"]
    assert refused["remedy"]
    assert run.errors.count('"part_started"') == 1


def test_wrong_use_is_not_retried(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """A config that cannot be read gives exit code 2, and no part is started."""
    pipeline = make_pipeline(source={"no_such_key": 1})
    run = _start(pipeline, tailrace)
    run.expect_exit(2, 60)
    assert "no_such_key" in run.errors


def test_a_killed_run_leaves_no_orphan(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """After `kill -9` of `run`, capture ends as after SIGTERM and releases the slot."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = _start(pipeline, tailrace)
    run.wait_for_line('"streaming"', 90)
    family = _family(run.pid)
    run.signal(SIGKILL)
    _wait_until_gone(family)
    eventually(lambda: pipeline.slot().pid is None, 30, "the slot to be free")


@pytest.mark.slow
def test_parts_fail_and_restart_independently(
    make_pipeline: MakePipeline, redis_url: str, tailrace: StartProcess
) -> None:
    """The sync's driver is killed and capture refuses, each without an effect on the other.

    After `kill -9` of the driver, capture continues, and a new driver lets the store catch up.

    A capture that refuses stays down and the sync continues; started again, it refuses once more.

    After `kill -9` of `run` itself every process below it ends, Spark's included.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    run = _start(pipeline, tailrace)
    run.wait_for(lambda: (_state(run).get("slot") or {}).get("confirmed"), 90, "the slot's position")
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 100) i")
    stores.assert_same("t", deadline_seconds=180)
    run.wait_for(lambda: _state(run)["stores"][0]["lsn"], 30, "the store's position in the view")

    capture = _part(run, "capture")["pid"]
    driver = psutil.Process(_part(run, "sync")["pid"])
    family = [driver, *driver.children(recursive=True)]
    _kill_part(run, "sync")
    pipeline.database.execute("UPDATE t SET v = 'two'; DELETE FROM t WHERE id > 50")
    stores.assert_same("t", deadline_seconds=180)
    assert (_part(run, "capture")["pid"], _part(run, "capture")["restarts"]) == (capture, 0)
    _wait_until_gone(family)

    pipeline.database.execute("ALTER PUBLICATION tailrace RENAME TO another")
    os.kill(capture, SIGTERM)
    refused = _wait_for_part(run, "capture", "refused")
    assert "Publication tailrace is gone" in refused["note"]
    assert _part(run, "sync")["condition"] == "running"
    starts = run.errors.count('"part_started"')
    run.signal(SIGUSR1)
    run.wait_for(lambda: run.errors.count('"part_refused"') == 2, 60, "capture to refuse again")
    assert run.errors.count('"part_started"') == starts + 1

    family = _family(run.pid)
    assert any("java" in each.name() for each in family)
    run.signal(SIGKILL)
    _wait_until_gone(family)


@pytest.mark.slow
def test_run_goes_on_by_itself_after_a_recovery(
    make_pipeline: MakePipeline, redis_url: str, tailrace: StartProcess
) -> None:
    """After `tailrace recover` of a deleted topic, run restarts capture and copies the tables, and the store equals
    the source.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    run = _start(pipeline, tailrace)
    run.wait_for(lambda: (_state(run).get("slot") or {}).get("confirmed"), 90, "the slot's position")
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 100) i")
    stores.assert_same("t", deadline_seconds=180)
    delete_topic(pipeline.bootstrap, pipeline.topic("t"))
    assert "tailrace recover" in _wait_for_part(run, "capture", "refused")["remedy"]
    gone = f"Topic {pipeline.topic('t')} is gone"
    run.wait_for(lambda: gone in _part(run, "sync")["note"], 120, "the sync to say so")
    pipeline.database.execute("DELETE FROM t WHERE id > 50")
    done = pipeline.run("recover", "--yes")
    done.expect_exit(0, 120)
    _wait_for_part(run, "capture", "running")
    run.wait_for(lambda: run.errors.count('"part_done"') == 1, 240, "the copy")
    stores.assert_same("t", deadline_seconds=240)
    assert "KeyError" not in run.errors


@pytest.mark.slow
def test_a_second_run_stands_by_and_takes_the_stores_over(
    make_pipeline: MakePipeline, redis_url: str, tailrace: StartProcess
) -> None:
    """A second run of one config waits until the first is dead, and then takes over its stores."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    first = _start(pipeline, tailrace)
    first.wait_for(lambda: (_state(first).get("slot") or {}).get("confirmed"), 90, "the slot's position")
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 100) i")
    stores.assert_same("t", deadline_seconds=180)
    second = _start(pipeline, tailrace)
    second.wait_for(lambda: "stands by" in _part(second, "capture").get("note", ""), 60, "the second one to stand by")
    assert _part(second, "sync")["condition"] == "idle"

    family = _family(first.pid)
    first.signal(SIGKILL)
    _wait_until_gone(family)
    _wait_for_part(second, "sync", "running")
    pipeline.database.execute("UPDATE t SET v = 'two'; DELETE FROM t WHERE id > 50")
    stores.assert_same("t", deadline_seconds=180)
    assert "refused" not in second.errors + first.errors


@pytest.mark.slow
def test_two_runs_that_begin_while_the_source_is_away(
    make_pipeline: MakePipeline,
    redis_url: str,
    tailrace: StartProcess,
    stack: Stack,
    start_proxy: Callable[[str, int], Proxy],
) -> None:
    """When the source is unreachable neither run knows which one leads, so both sync the store.

    When the source is back, the leading run has the store, and the other run's sync ends. A run that cannot reach the
    source has the store for a moment only.
    """
    server = stack.server("postgres")
    proxy = start_proxy(server.host, server.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 100) i")
    pipeline.fence(while_running=capture)
    capture.stop()
    proxy.cut()
    pair = [_start(pipeline, tailrace) for _ in range(2)]
    for run in pair:
        run.wait_for_line('"syncing"', 180)
    eventually(lambda: any(_lost_its_store(run) for run in pair), 90, "one to lose the store")
    proxy.restore()

    def standby() -> list[Process]:
        return [run for run in pair if "stands by" in _part(run, "capture").get("note", "")]

    eventually(standby, 120, "one to stand by")
    (other,) = standby()
    (leader,) = [run for run in pair if run is not other]
    _wait_for_part(leader, "sync", "running")
    _wait_for_part(other, "sync", "idle")
    family = _family(other.pid)
    other.signal(SIGKILL)
    _wait_until_gone(family)

    blind = tailrace("run", "--json", "--config", str(_without_source(pipeline, proxy)))
    blind.wait_for(lambda: _lost_its_store(blind), 180, "the store to be taken back")
    pipeline.database.execute("UPDATE t SET v = 'two'; DELETE FROM t WHERE id > 50")
    stores.assert_same("t", deadline_seconds=180)
    assert _part(leader, "sync")["condition"] == "running"
    assert "part_refused" not in leader.errors + other.errors + blind.errors


def _lost_its_store(run: Process) -> bool:
    sync = _part(run, "sync")
    return (sync.get("condition"), sync.get("note")) == ("idle", "another sync has taken cache")


def _without_source(pipeline: Pipeline, proxy: Proxy) -> Path:
    """The same pipeline on a host that reaches every server except the source."""
    config = pipeline.config.parent / "blind" / pipeline.config.name
    config.parent.mkdir()
    config.write_text(pipeline.config.read_text().replace(f":{proxy.port}/", ":1/"))
    return config


@pytest.mark.slow
def test_run_copies_what_is_due_and_stops_cleanly(
    make_pipeline: MakePipeline, redis_url: str, tailrace: StartProcess
) -> None:
    """Run copies existing rows and tables that become incomplete; SIGTERM ends every process with exit code 0."""
    pipeline = make_pipeline(snapshot={"initial": True})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT i, 'one' FROM generate_series(1, 1000) i")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    run = _start(pipeline, tailrace)
    run.wait_for(lambda: run.errors.count('"part_done"') == 1, 180, "the first copy")
    stores.assert_same("t", deadline_seconds=180)
    pipeline.database.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 7")
    run.wait_for(lambda: run.errors.count('"part_done"') == 2, 180, "the second copy")
    run.wait_for(lambda: not _state(run)["incomplete"], 30, "no table to be incomplete")
    pipeline.fence(while_running=run)
    (comparison,) = compare_all(load_config(pipeline.config), 120)
    assert (bool(comparison), comparison.rows, comparison.tables) == (True, 1000, 1), str(comparison)
    family = _family(run.pid)
    run.terminate()
    run.expect_exit(0, 90)
    assert not _alive(family)

"""The demo as a new user runs it: a real process, real servers, real signals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from signal import SIGKILL

import psutil
import psycopg
import pytest
from redis import Redis

from cdc.config import Config, load_config
from cdc.config.stores import RedisConfig as RedisSettings
from cdc.demo import shop
from cdc.demo.comparison import compare
from cdc.demo.pipeline_process import STORES
from cdc.stores.registry import open_store
from deploy.stack import NAMES, Stack, open_stack
from tests.harness.kafka.topics import delete_topics
from tests.harness.processes.process import Process, StartProcess
from tests.harness.servers import cleanup

_RATES = r"^shop: transactions [1-9]\d*\.\d/s, inserts .*/s, updates .*/s, deletes .*/s, written [\d,]+ rows"


@pytest.fixture
def running_stack(
    stack: Stack, postgres_url: str, kafka_bootstrap: str, elasticsearch_url: str, redis_url: str
) -> Iterator[Stack]:
    """All servers of the run, without the demo's shop before and after."""
    yield stack
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [shop.DATABASE]
        )
        delete_topics(kafka_bootstrap, shop.DATABASE)
        cleanup.delete_indices(elasticsearch_url, shop.DATABASE)
        cleanup.delete_keys(redis_url, shop.DATABASE)
        admin.execute(f"DROP DATABASE IF EXISTS {shop.DATABASE} WITH (FORCE)")
    shutil.rmtree(stack.folder / "warehouse", ignore_errors=True)


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for the demo's own servers, which are stopped after the test."""
    yield tmp_path / "stack"
    open_stack(tmp_path / "stack").down(wipe=True)


def _running(folder: Path) -> set[int]:
    return {server.pid for server in open_stack(folder).status() if server.pid is not None}


def _alive(pids: set[int]) -> list[psutil.Process]:
    """The processes that still run; a dead orphan that was not reaped keeps its entry."""
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def _written(process: Process) -> int:
    found = re.search(r"^Wrote ([\d,]+) transactions", process.output, re.MULTILINE)
    assert found, process.transcript()
    return int(found[1].replace(",", ""))


@pytest.mark.timeout(600)
def test_the_demo_ends_with_every_store_equal_to_the_source(running_stack: Stack, tailrace: StartProcess) -> None:
    """`--for` ends with exit code 0 and one line per store that says that all rows arrived.

    Addresses and lag are shown, and servers that ran before keep running. The comparison does find a missing, an extra
    and a changed row.
    """
    process = tailrace("demo", "--for", "6", "--folder", str(running_stack.folder), "--seed", "1")
    process.expect_exit(0, 400)
    for server in running_stack.status():
        assert f"{server.name}: {server.address}" in process.output
        assert server.healthy
    assert re.search(_RATES, process.output, re.MULTILINE), process.transcript()
    lag = r"^pipeline: capture [\d.,]+ kB behind" + "".join(rf", {name} [\d.]+ s behind" for name in STORES)
    assert re.search(lag, process.output, re.MULTILINE), process.transcript()
    assert _written(process) > 150
    equal = re.findall(r"^(\w+) equals the source: ([\d,]+) rows in 4 tables\.$", process.output, re.MULTILINE)
    dsn = shop.create_database(running_stack.server("postgres").address)
    with psycopg.connect(dsn) as connection:
        count = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in shop.TABLES)
    assert equal == [(name, f"{count:,}") for name in STORES], process.transcript()
    assert re.search(r"^warehouse as of .*, as the source had then\.$", process.output, re.MULTILINE)
    _assert_differences_are_seen(load_config(running_stack.folder / "tailrace.toml"))


def _assert_differences_are_seen(config: Config) -> None:
    """Remove, add and change a row without Tailrace; the comparison reports each."""
    settings = config.stores["cache"]
    assert isinstance(settings, RedisSettings)
    with closing(Redis.from_url(settings.url.reveal())) as redis:
        first, second = sorted(key for key in redis.scan_iter("shop:public.customers:*"))[:2]
        row = json.loads(redis.hget(first, "row") or b"null")
        redis.hset(first, "row", json.dumps({**row, "name": "somebody else"}))
        redis.rename(second, b"shop:public.customers:999999999")
    with closing(open_store("cache", settings, config.kafka.prefix)) as store:
        comparison = compare(config, "cache", store)
    ids = {key.decode().rpartition(":")[2] for key in (first, second)} | {"999999999"}
    assert not comparison
    assert set(comparison.differences) == {f"public.customers {each}" for each in ids}
    assert str(comparison).startswith("cache differs from the source in 3 rows: public.customers ")


def test_the_writer_survives_a_crash_of_postgres(running_stack: Stack, tailrace: StartProcess) -> None:
    """When Postgres is killed and started again, the demo says that it waits and then continues; SIGTERM ends it."""
    process = tailrace("demo", "--without-stores", "--folder", str(running_stack.folder))
    process.wait_for_line(_RATES, 60)
    running_stack.stop("postgres", SIGKILL)
    process.wait_for_line("writer waiting for Postgres", 60)
    running_stack.start("postgres")
    seen = len(re.findall(_RATES, process.output, re.MULTILINE))
    process.wait_for(lambda: len(re.findall(_RATES, process.output, re.MULTILINE)) > seen, 60, "rates after the crash")
    process.terminate()
    process.expect_exit(0, 60)


def test_ctrl_c_stops_everything_that_the_demo_started(own_folder: Path, tailrace: StartProcess) -> None:
    """Ctrl-C ends the demo with exit code 0 and stops every server; a second Ctrl-C meanwhile changes nothing."""
    process = tailrace("demo", "--without-stores", "--folder", str(own_folder))
    process.wait_for_line(_RATES, 200)
    pids = _running(own_folder)
    assert len(pids) == len(NAMES)
    process.interrupt()
    process.wait_for_line("Stopping the servers", 60)
    process.interrupt()
    process.expect_exit(0, 60)
    assert _written(process) > 0
    assert (_alive(pids), _running(own_folder)) == ([], set())


def test_ctrl_c_while_servers_start_leaves_nothing(own_folder: Path, tailrace: StartProcess) -> None:
    """Ctrl-C during start-up stops every server that had been started."""
    process = tailrace("demo", "--without-stores", "--folder", str(own_folder))
    process.wait_for_line("^redis: ready", 200)
    pids = _running(own_folder)
    assert pids
    process.interrupt()
    process.expect_exit(0, 60)
    assert (_alive(pids), _running(own_folder)) == ([], set())

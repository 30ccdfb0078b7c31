"""A seeded mix of writes, kills, freezes, cuts and restarts; at the end the topic equals the table.

TAILRACE_CHAOS_SEED replays the faults of a run (it is printed), TAILRACE_CHAOS_SECONDS makes it longer.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import TYPE_CHECKING

import psycopg
import pytest

from deploy.stack import Stack
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = float(os.environ.get("TAILRACE_CHAOS_SECONDS", "90"))
_SEED = int(os.environ.get("TAILRACE_CHAOS_SEED", "0")) or random.randrange(1, 1_000_000)


class Chaos:
    """One fault at a time; everything works again when it returns."""

    def __init__(self, pipeline: Pipeline, stack: Stack, proxy: Proxy, rng: random.Random) -> None:
        self._pipeline = pipeline
        self._stack = stack
        self._proxy = proxy
        self._rng = rng
        self.capture: Process = pipeline.start()
        self.faults: dict[str, Callable[[], None]] = {
            "kill capture": self._kill_capture,
            "stop capture": self._stop_capture,
            "freeze capture": self._freeze_capture,
            "reset connections": proxy.reset_connections,
            "cut the network": self._cut,
            "kill the broker": lambda: self._restart("kafka", SIGKILL),
            "freeze the broker": lambda: self._freeze("kafka"),
            "kill the server": lambda: self._restart("postgres", SIGKILL),
            "stop the server": lambda: self._restart("postgres", SIGINT),
            "freeze the server": lambda: self._freeze("postgres"),
        }

    def _kill_capture(self) -> None:
        self.capture.kill()
        self.capture = self._pipeline.launch()

    def _stop_capture(self) -> None:
        self.capture.terminate()
        assert self.capture.wait(60) in (0, -SIGTERM), self.capture.transcript()  # -15: it had hardly begun
        self.capture = self._pipeline.launch()

    def _freeze_capture(self) -> None:
        self.capture.freeze()
        self._linger(12)
        self.capture.thaw()

    def _cut(self) -> None:
        self._proxy.blackhole()
        self._linger(12)
        self._proxy.restore()

    def _freeze(self, server: str) -> None:
        self._stack.stop(server, SIGSTOP)
        try:
            self._linger(12)
        finally:
            self._stack.stop(server, SIGCONT)

    def _restart(self, server: str, signal: Signals) -> None:
        self._stack.stop(server, signal)
        try:
            self._linger(2)
        finally:
            self._stack.start(server)

    def _linger(self, at_most_seconds: float) -> None:
        time.sleep(self._rng.random() * at_most_seconds)  # the length of a fault is part of the seed


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS * 3 + 300)
def test_random_faults_lose_and_duplicate_nothing(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy], spark: SparkSession
) -> None:
    """After random faults in random order, capture recovers without intervention and each change is published once."""
    rng = random.Random(_SEED)
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    split = rng.choice([3, 50, 1000, 100_000])
    pipeline = make_pipeline(proxy=proxy, capture={"transaction_events": split, "transaction_timeout_seconds": 10})
    pipeline.database.execute(SCHEMA)
    pipeline.database.execute(f"ALTER DATABASE {pipeline.database.name} SET wal_sender_timeout = '5s'")
    chaos = Chaos(pipeline, stack, proxy, rng)
    end = time.monotonic() + _SECONDS
    with Writer(pipeline.database, seed=_SEED, survives=True) as writer:
        while time.monotonic() < end:
            fault = rng.choice(list(chaos.faults))
            print(f"seed {_SEED}: after {writer.transactions} transactions: {fault}")
            writer.wait_for_more(rng.randint(1, 300))
            assert chaos.capture.running, chaos.capture.transcript()
            chaos.faults[fault]()
    eventually(lambda: _answers(pipeline), what="Postgres to answer")
    pipeline.assert_same("items", deadline_seconds=180, while_running=chaos.capture)
    assert_clean(pipeline.config, spark)


def _answers(pipeline: Pipeline) -> bool:
    """Whether the source answers; the first query after an outage may fail on the old connection."""
    try:
        return pipeline.database.execute("SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False

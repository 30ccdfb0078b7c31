"""The dashboard's figures are compared with known values: each hop is held for a known time, on real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.harness.dashboard.client import Visitor
from tests.harness.dashboard.metric_names import names_scraped, names_used
from tests.harness.network.webhook_receiver import Receiver
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_redis import OwnRedis
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "a-token-of-tests-0123"
PASSWORD = "a-password-that-is-not-shown"
#: A reading is this far from the next, and a heartbeat from the next; a loaded machine adds to both.
APART_SECONDS = 5.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    own = Receiver()
    yield own
    own.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedis]:
    """A Redis with a password, which no output may have."""
    own = OwnRedis(tmp_path)
    own.client().config_set("requirepass", PASSWORD)
    yield own
    own.close()


class Watched:
    """A pipeline with one store, and the dashboard that observes it."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, tailrace: StartProcess, redis: OwnRedis, receiver: Receiver
    ) -> None:
        self.pipeline = pipeline
        self.redis = redis
        self.receiver = receiver
        pipeline.configure(
            lag={"interval_seconds": 0.5, "max_seconds": 4, "stalled_seconds": 5},
            alerts={"webhook": receiver.url, "after_seconds": 1, "recovered_seconds": 1},
            dashboard={"enabled": False, "port": 0, "token": TOKEN},
        )
        pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        url = f"redis://:{PASSWORD}@127.0.0.1:{redis.port}/0"
        self.stores = StorePipeline(pipeline, spark, {"cache": {"kind": "redis", "url": url}})
        self.capture = pipeline.start()
        pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
        self.dashboard = tailrace("dashboard", "--config", str(pipeline.config))
        self.visitor = Visitor(self.dashboard.wait_for_line(r"Dashboard: (http\S+)/")[1], TOKEN)

    def shows(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """The first record for which the condition is true."""

        def found() -> dict[str, Any] | None:
            record = self.visitor.record()
            return record if record and condition(record) else None

        return eventually(found, 60, what) or {}

    def written(self) -> float:
        """The time of the last write, by the source's clock."""
        self.pipeline.database.execute("UPDATE t SET v = v || 'x'")
        ((now,),) = self.pipeline.database.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)

    def shows_in_step(self) -> None:
        self.shows(lambda record: record["ready"] and _store(record)["seconds"] == 0, "no store to lag")

    def told(self, where: str) -> list[tuple[str, str]]:
        return [(each["event"], each["state"]) for each in self.receiver.messages if each["where"] == where]


@pytest.fixture
def watched(
    make_pipeline: MakePipeline, spark: SparkSession, tailrace: StartProcess, redis: OwnRedis, receiver: Receiver
) -> Watched:
    return Watched(make_pipeline(), spark, tailrace, redis, receiver)


def _store(record: dict[str, Any], name: str = "cache") -> dict[str, Any]:
    found: dict[str, Any] = next(store for store in record["stores"] if store["name"] == name)
    return found


def _agrees(shown: float | None, truth: float) -> bool:
    """Lag is never understated, except by the time of one reading, and overstated by at most one step of each clock."""
    assert shown is not None
    return truth - 0.5 <= shown <= truth + APART_SECONDS


def test_lag_is_right_when_idle_and_while_capture_is_frozen_or_dead(watched: Watched) -> None:
    """While capture is frozen or dead, lag grows with the age of the unpublished change, and readiness turns red,
    then green.
    """
    shows, visitor = watched.shows, watched.visitor
    with watched.stores.syncing():
        watched.stores.wait()
        watched.shows_in_step()
        assert visitor.get("/readyz").status == 200

        watched.capture.freeze()
        at = watched.written()
        record = shows(lambda record: record["read_at"] - at > 8, "eight seconds to pass")
        assert _agrees(record["topics"]["seconds"], record["read_at"] - at)
        assert _agrees(_store(record)["seconds"], record["read_at"] - at)
        shows(lambda record: record["topics"]["health"]["state"] == "stalled", "capture to be called stalled")
        assert visitor.get("/readyz").status == 503
        watched.capture.thaw()
        watched.shows_in_step()

        killed_at = time.time()
        watched.capture.kill()
        shows(lambda record: record["topics"]["health"]["state"] == "down", "capture to be called down")
        at = watched.written()
        record = shows(lambda record: record["read_at"] - at > 3, "three seconds to pass")
        # The server writes log of its own as well: what the store lacks may be as old as the kill.
        assert record["read_at"] - at - 0.5 <= _store(record)["seconds"]
        assert _store(record)["seconds"] <= record["read_at"] - killed_at + APART_SECONDS
        later = shows(lambda later: later["read_at"] - at > 5, "five seconds to pass")
        assert later["topics"]["seconds"] > record["topics"]["seconds"]
        watched.pipeline.start()
        watched.shows_in_step()
    _assert_names_exist(visitor.get("/metrics").text)


def test_lag_is_right_while_a_store_is_paused_or_gone_and_alerts_are_sent(
    watched: Watched, tailrace: StartProcess
) -> None:
    """Only the store's lag grows, alerts start and end, and the mirrored consumer group has the store's offsets.

    No output of the dashboard, its log and its alerts has a password or a token.
    """
    shows, visitor, pipeline = watched.shows, watched.visitor, watched.pipeline
    with watched.stores.syncing():
        watched.stores.wait()
        watched.shows_in_step()
        assert visitor.post("/api/stores/cache/pause").status == 202
        shows(lambda record: _store(record)["health"]["state"] == "paused", "the store to be paused")
        pipeline.fence()
        at = watched.written()
        record = shows(lambda record: record["read_at"] - at > 5, "five seconds to pass")
        assert _agrees(_store(record)["seconds"], record["read_at"] - at)
        assert _store(record)["records"] > 0
        assert record["topics"]["seconds"] < _store(record)["seconds"]
        assert visitor.post("/api/stores/cache/resume").status == 202
        watched.shows_in_step()

        watched.redis.kill()
        shows(lambda record: _store(record)["health"]["state"] == "down", "the store to be called down")
        assert visitor.get("/readyz").status == 503
        eventually(lambda: ("raised", "down") in watched.told("store cache"), what="an alert")
        watched.redis.start()
        watched.redis.client().config_set("requirepass", PASSWORD)
        watched.shows_in_step()
        eventually(lambda: watched.told("store cache")[-1] == ("recovered", "ok"), what="the end of the alert")

        lag = tailrace("lag", "--json", "--config", str(pipeline.config))
        lag.expect_exit(0, 60)
        assert json.loads(lag.output)["stores"][0]["records"] == 0
        _assert_mirrored(pipeline.bootstrap, f"{pipeline.prefix}.cache", visitor)

    state = visitor.get("/api/state").text
    assert {"store cache"} <= {entry["where"] for entry in json.loads(state)["journal"]}
    metrics = visitor.get("/metrics").text
    watched.dashboard.terminate()
    watched.dashboard.expect_exit(0)
    process = watched.dashboard
    everything = [process.output, process.errors, metrics, state, lag.output, str(watched.receiver.messages)]
    assert not [text for text in everything if PASSWORD in text or TOKEN in text]


@pytest.mark.slow
def test_an_audit_and_a_retry_can_be_started_from_the_page(watched: Watched) -> None:
    """The page starts the commands and shows how they ended and what the audit found."""
    visitor = watched.visitor
    with watched.stores.syncing():
        watched.stores.wait()
        for kind in ("audit", "retry-parked"):
            assert visitor.post(f"/api/stores/cache/{kind}").status == 202

        def ended() -> dict[str, int | None]:
            return {each["kind"]: each["exit_code"] for each in visitor.get("/api/state").json["actions"]}

        eventually(lambda: ended() == {"audit": 0, "retry-parked": 0}, 180, "both commands to have ended well")
        watched.shows(lambda record: (_store(record)["audit"] or {}).get("differences") == 0, "the audit's verdict")


def test_run_serves_the_page_and_starts_it_again(make_pipeline: MakePipeline, tailrace: StartProcess) -> None:
    """`tailrace run` restarts a killed dashboard, keeps its journal, and stops it with exit code 0."""
    pipeline = make_pipeline(dashboard={"port": 0, "token": TOKEN}, lag={"interval_seconds": 0.5})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = tailrace("run", "--json", "--config", str(pipeline.config))

    def served(number: int) -> Visitor:
        def addresses() -> list[str]:
            return re.findall(r"Dashboard: (http[\d.:/]+)/", run.errors)

        run.wait_for(lambda: len(addresses()) > number, 60, "the page's address")
        return Visitor(addresses()[number], TOKEN)

    first = served(0)
    eventually(lambda: "topics: ok" in first.get("/readyz").text, 60, "capture to be well")
    (pid,) = re.findall(r'"part": "dashboard", "pid": (\d+)', run.errors)
    os.kill(int(pid), signal.SIGKILL)
    again = served(1)
    eventually(lambda: again.get("/readyz").status == 200, 60, "the page to be back")
    assert len(again.get("/api/history").json["times"]) > 0
    run.terminate()
    run.expect_exit(0, 60)
    assert '"part": "dashboard", "exit_code": 0' in run.errors


def _assert_mirrored(bootstrap: str, group: str, visitor: Visitor) -> None:
    """The consumer group has the offsets that the store has reached."""

    def mirrored() -> bool:
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            (answer,) = (future.result(10) for future in asked.values())
        found = {(place.topic, place.partition): place.offset for place in answer.topic_partitions}
        applied = {
            (table["topic"], each["number"]): each["applied"]["cache"]
            for table in visitor.record()["tables"]
            for each in table["partitions"]
        }
        return found == applied

    eventually(mirrored, 30, "the consumer group to stand where the store does")


def _assert_names_exist(scrape: str) -> None:
    """A live scrape has every metric that the Grafana dashboard, the alert rules and the documentation name."""
    scraped = names_scraped(scrape)
    for place, used in names_used().items():
        assert used, f"{place} uses no metric"
        assert used <= scraped, f"{place} uses {sorted(used - scraped)}, which are not exposed"


def test_readiness_is_red_while_a_store_takes_connections_and_never_answers(watched: Watched) -> None:
    """`/readyz` names a store that accepts connections and never answers, and turns green when it answers."""
    visitor = watched.visitor
    with watched.stores.syncing():
        watched.stores.wait()
        watched.shows_in_step()
        watched.redis.freeze()
        watched.written()
        eventually(lambda: visitor.get("/readyz").status == 503, 60, "readiness to be red")
        (line,) = [line for line in visitor.get("/readyz").text.splitlines() if line.startswith("store cache: ")]
        assert line != "store cache: ok"
        watched.redis.thaw()
        eventually(lambda: visitor.get("/readyz").status == 200, 60, "readiness to be green")
        watched.shows_in_step()


@pytest.mark.slow
def test_readiness_is_red_while_a_sync_hangs(
    make_pipeline: MakePipeline, redis_url: str, tailrace: StartProcess
) -> None:
    """SIGSTOP to the sync of a real `tailrace run` turns readiness red, and SIGCONT turns it green."""
    pipeline = make_pipeline(
        dashboard={"port": 0, "token": TOKEN},
        lag={"interval_seconds": 0.5, "max_seconds": 4, "stalled_seconds": 5},
    )
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, None, {"cache": {"kind": "redis", "url": redis_url}})  # type: ignore[arg-type]
    run = tailrace("run", "--json", "--config", str(pipeline.config))
    visitor = Visitor(run.wait_for_line(r"Dashboard: (http[\d.:/]+)/", 90)[1], TOKEN)
    run.wait_for_line('"streaming"', 90)
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    stores.assert_same("t", deadline_seconds=180)
    eventually(lambda: visitor.get("/readyz").status == 200, 60, "readiness to be green")
    sync = int(run.wait_for_line(r'"part": "sync", "pid": (\d+)')[1])
    os.killpg(sync, signal.SIGSTOP)
    try:
        pipeline.database.execute("INSERT INTO t VALUES (2, 'b')")
        eventually(lambda: visitor.get("/readyz").status == 503, 60, "readiness to be red")
        assert "store cache: stalled" in visitor.get("/readyz").text
        assert '"part_died"' not in run.errors
    finally:
        os.killpg(sync, signal.SIGCONT)
    eventually(lambda: visitor.get("/readyz").status == 200, 60, "readiness to be green again")
    stores.assert_same("t")

"""With a real broker that has TLS and passwords, every client of ours can connect, and a wrong setting is refused with
its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.check import Level, inspect
from cdc.config import Config, load_config
from cdc.errors import RefusedError
from cdc.kafka.control_topics import committed_reader, end_of_all
from cdc.kafka.failures import kafka_refusal
from cdc.kafka.topics import Topics
from spark_jobs.sync.progress_follower import ProgressFollower
from tests.harness.pipeline.check_runs import config_text
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, StartProcess, tailrace_argv
from tests.harness.processes.waiting import eventually
from tests.harness.servers.secured_kafka import PASSWORD, PASSWORD_PARTS, WRONG_PASSWORD, SecuredKafka
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CERTIFICATE = "Kafka's certificate was not accepted"
REFUSALS = {
    "wrong_authority": ({"authority": "wrong"}, _CERTIFICATE, "unable to get local issuer certificate", "[kafka.tls]"),
    "wrong_host_name": ({"host": "127.0.0.1"}, _CERTIFICATE, "not valid for '127.0.0.1'", "[kafka] bootstrap"),
    "wrong_password": ({"password": WRONG_PASSWORD}, "Kafka rejected the login", "invalid credentials", "[kafka.sasl]"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    own = SecuredKafka(tmp_path_factory.mktemp("secured"))
    yield own
    own.close()


def _configs(broker: SecuredKafka, postgres_url: str, folder: Path) -> dict[str, Path]:
    """One config for each refusal."""
    files = {}
    for name, (changed, *_) in REFUSALS.items():
        files[name] = folder / f"{name}.toml"
        kafka = broker.section(**changed)
        text = config_text(postgres_url, str(kafka.pop("bootstrap")), name, kafka=kafka)
        files[name].write_text(text, encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def refused(
    broker: SecuredKafka, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, Process]]]:
    """The results of `capture` and `check` with each wrong config; all run at once, since each mostly waits."""
    processes = {
        name: {
            command: Process(tailrace_argv("--log-level", "debug", command, "--config", str(file)))
            for command in ("capture", "check")
        }
        for name, file in _configs(broker, postgres_url, tmp_path_factory.mktemp("refused")).items()
    }
    yield processes
    for started in processes.values():
        for process in started.values():
            process.kill()


@pytest.mark.parametrize("name", REFUSALS)
def test_a_wrong_setting_is_refused_with_its_remedy(
    refused: dict[str, dict[str, Process]], broker: SecuredKafka, name: str
) -> None:
    """Capture exits with code 3, check fails at the broker, and no output has a password, debug output included."""
    capture, check = refused[name]["capture"], refused[name]["check"]
    capture.expect_exit(3, 120)
    check.expect_exit(1, 120)
    _, *words = REFUSALS[name]
    for word in words:
        assert word in capture.errors, capture.transcript()
        assert word in check.output, check.transcript()
    assert f"FAIL  broker: {words[0]}" in check.output
    for text in (*(said for process in (capture, check) for said in (process.output, process.errors)), broker.log):
        assert not any(part in text for part in PASSWORD_PARTS)


def test_readers_of_control_topics_are_refused_as_well(broker: SecuredKafka, postgres_url: str, tmp_path: Path) -> None:
    """Readers of control topics report the real reason, although librdkafka reports only a timeout."""
    config = load_config(_configs(broker, postgres_url, tmp_path)["wrong_password"])
    with pytest.raises(RefusedError, match="invalid credentials"):
        end_of_all(config.kafka.client_options(), "nothing", 1)
    with ProgressFollower(config) as follower:

        def is_refused() -> bool:
            try:
                follower.progress()
            except RefusedError as error:
                return "[kafka.sasl]" in str(error)
            return False

        eventually(is_refused, 60, "the follower refuses")


def test_a_broker_that_is_away_is_no_refusal(broker: SecuredKafka, postgres_url: str, tmp_path: Path) -> None:
    """Capture retries when no process listens at the address or the server there speaks no TLS."""
    options = load_config(_configs(broker, postgres_url, tmp_path)["wrong_password"]).kafka.client_options()
    assert kafka_refusal({**options, "bootstrap.servers": "localhost:1"}) is None
    assert kafka_refusal({**options, "bootstrap.servers": broker.plain}) is None


def test_right_credentials_are_enough_for_every_client(
    broker: SecuredKafka,
    database: Database,
    redis_url: str,
    prefix: str,
    spark: SparkSession,
    tmp_path: Path,
    tailrace: StartProcess,
) -> None:
    """With right credentials capture, sync, Spark and check can all connect."""
    pipeline = Pipeline(database=database, bootstrap=broker.plain, prefix=prefix, folder=tmp_path, start=tailrace)
    pipeline.configure(kafka=broker.section())
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores = StorePipeline(pipeline, spark, {"cache": {"kind": "redis", "url": redis_url}})
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 500) i")
    with stores.syncing():
        stores.assert_same("t")
    pipeline.assert_same("t", while_running=capture)
    config = stores.config
    read = spark.read.format("kafka").options(**config.kafka.spark_options())
    assert read.option("subscribe", pipeline.topic("t")).load().count() >= 500
    found = [finding for finding in inspect(config) if finding.place in ("broker", "topics")]
    assert found
    assert {finding.level for finding in found} <= {Level.OK, Level.WARN}, found
    capture.stop()
    assert json.dumps(PASSWORD)[1:-1] not in capture.errors
    assert not any(part in capture.errors + capture.output for part in PASSWORD_PARTS)


def test_sasl_plain_works_within_tls(broker: SecuredKafka, postgres_url: str, tmp_path: Path) -> None:
    """SASL PLAIN works with kafka-python and librdkafka, for a password with quotes, a backslash and spaces."""
    config = _right(broker, postgres_url, tmp_path, mechanism="PLAIN")
    topics = Topics(config.kafka)
    try:
        assert topics.describe(["nothing"]) == {}
    finally:
        topics.close()
    reader = committed_reader(config.kafka.client_options())
    try:
        assert reader.list_topics(timeout=30).brokers
    finally:
        reader.close()


def _right(broker: SecuredKafka, postgres_url: str, folder: Path, **sasl: str) -> Config:
    file, kafka = folder / "tailrace.toml", broker.section(**sasl)
    text = config_text(postgres_url, str(kafka.pop("bootstrap")), "plainly", kafka=kafka)
    file.write_text(text, encoding="utf-8")
    return load_config(file)

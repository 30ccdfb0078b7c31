"""`tailrace check` on a real broker: topics of a wrong shape, and broker settings that break the delivery promise."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cdc.check import Level, inspect
from cdc.check.broker import BrokerFacts, judge_broker, read_broker
from cdc.check.findings import fail, ok
from cdc.commands.start import check as command
from tests.harness.kafka.topics import create_topic
from tests.harness.pipeline.check_runs import assert_found, assert_no_fail, config_text, from_json, make_config
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess

COMPACTED = {"cleanup_policy": "compact", "max_message_bytes": "8388608", "delete_retention_ms": "604800000"}


def test_a_good_topic(database: Database, kafka_bootstrap: str, prefix: str) -> None:
    """A topic created by hand in the right shape passes, and so does one that capture will create."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    create_topic(kafka_bootstrap, f"{prefix}.public.t", 2, **COMPACTED)
    found = inspect(make_config(database.dsn, kafka_bootstrap, prefix))
    assert_no_fail(found)
    assert_found(found, Level.OK, f"topic {prefix}.public.t", "compacted, with 2 partitions")
    assert_found(found, Level.OK, f"topic {prefix}.public.u", "capture creates it")


TOPICS: dict[str, tuple[int, dict[str, str], Level, str, str]] = {
    "partitions": (3, {}, Level.FAIL, "3 partitions", "partitions = 3"),
    "policy": (2, {"cleanup_policy": "delete"}, Level.FAIL, "cleanup.policy is delete", "cleanup.policy=compact"),
    "both policies": (2, {"cleanup_policy": "compact,delete"}, Level.FAIL, "compact,delete", "cleanup.policy=compact"),
    "size": (2, {"max_message_bytes": "1048588"}, Level.FAIL, "1048588", "max.message.bytes=8388608"),
    "tombstones": (2, {"delete_retention_ms": "1000"}, Level.WARN, "misses deletes", "delete.retention.ms=604800000"),
    "min isr": (2, {"min_insync_replicas": "2"}, Level.FAIL, "refuses every write", "min.insync.replicas=1"),
}


@pytest.mark.parametrize(("partitions", "settings", "level", "what", "remedy"), TOPICS.values(), ids=TOPICS.keys())
def test_a_topic_of_the_wrong_shape(
    database: Database,
    kafka_bootstrap: str,
    prefix: str,
    partitions: int,
    settings: dict[str, str],
    level: Level,
    what: str,
    remedy: str,
) -> None:
    """A topic with a wrong setting fails before the first record is written."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    create_topic(kafka_bootstrap, f"{prefix}.public.t", partitions, **{**COMPACTED, **settings})
    found = inspect(make_config(database.dsn, kafka_bootstrap, prefix))
    assert_found(found, level, f"topic {prefix}.public.t", what, remedy)


def test_a_topic_with_records_of_another_pipeline(database: Database, kafka_bootstrap: str, prefix: str) -> None:
    """Records without a progress record give a warning, since they would stay as deleted rows."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    topic = f"{prefix}.public.t"
    create_topic(kafka_bootstrap, topic, 2, **COMPACTED)
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    producer.produce(topic, key=b"1", value=b"old")
    assert producer.flush(30) == 0
    found = inspect(make_config(database.dsn, kafka_bootstrap, prefix))
    assert_found(found, Level.WARN, f"topic {topic}", "already holds 1 records", "another [kafka] prefix")


def test_control_topics_of_the_wrong_shape(database: Database, kafka_bootstrap: str, prefix: str) -> None:
    """A progress topic from which retention may delete the progress record fails."""
    create_topic(kafka_bootstrap, f"{prefix}.__progress", 2, cleanup_policy="delete")
    found = inspect(make_config(database.dsn, kafka_bootstrap, prefix))
    assert_found(found, Level.FAIL, f"topic {prefix}.__progress", "2 partitions; expected 1")
    assert_found(found, Level.FAIL, f"topic {prefix}.__progress", "cleanup.policy is delete")


@pytest.fixture(scope="module")
def facts(kafka_bootstrap: str) -> BrokerFacts:
    """Facts read from the real broker; the tests change single ones, since a cluster for each would take minutes."""
    return read_broker(make_config("postgresql://unused", kafka_bootstrap, "unused"))


def test_the_real_broker_is_good(facts: BrokerFacts, kafka_bootstrap: str) -> None:
    """The run's broker passes, and its settings can be read."""
    found = list(judge_broker(facts, make_config("postgresql://unused", kafka_bootstrap, "unused")))
    assert_no_fail(found)
    assert_found(found, Level.OK, "broker", "Kafka answers, version 4")
    assert_found(found, Level.OK, "broker", "transaction.max.timeout.ms is 900000")
    assert_found(found, Level.WARN, "broker", "replication_factor is 1", "replication_factor = 3")


BROKERS: dict[str, tuple[dict[str, str], dict[str, Any], int, Level, str, str]] = {
    "unclean election": (
        {"unclean.leader.election.enable": "true"},
        {"replication_factor": 3},
        3,
        Level.FAIL,
        "may become leader",
        "unclean.leader.election.enable=false",
    ),
    "too few brokers": ({}, {"replication_factor": 3}, 1, Level.FAIL, "only 1 broker(s)", "replication_factor"),
    "min isr above": (
        {"min.insync.replicas": "2"},
        {"replication_factor": 1},
        1,
        Level.FAIL,
        "would refuse every write",
        "replication_factor",
    ),
    "min isr of one": (
        {"min.insync.replicas": "1"},
        {"replication_factor": 3},
        3,
        Level.WARN,
        "may exist on one broker only",
        "min.insync.replicas=2",
    ),
    "min isr equal": (
        {"min.insync.replicas": "3"},
        {"replication_factor": 3},
        3,
        Level.WARN,
        "while one broker is down",
        "Raise replication_factor",
    ),
    "transaction timeout": (
        {"transaction.max.timeout.ms": "30000"},
        {},
        1,
        Level.FAIL,
        "reject capture's producer",
        "transaction_timeout_seconds = 30",
    ),
    "transaction log": (
        {"transaction.state.log.replication.factor": "1"},
        {"replication_factor": 3},
        3,
        Level.WARN,
        "fewer replicas",
        "transaction.state.log.replication.factor=3",
    ),
    "request size": (
        {"socket.request.max.bytes": "1000000"},
        {},
        1,
        Level.FAIL,
        "would reject",
        "max_message_bytes below 1000000",
    ),
    "replica fetch": (
        {"replica.fetch.max.bytes": "1048576"},
        {"replication_factor": 3},
        3,
        Level.WARN,
        "one by one",
        "replica.fetch.max.bytes=8388608",
    ),
    "control records": (
        {"message.max.bytes": "10000"},
        {},
        1,
        Level.WARN,
        "may be larger",
        "message.max.bytes=1048588",
    ),
    "auto create": (
        {"auto.create.topics.enable": "true"},
        {},
        1,
        Level.WARN,
        "wrong settings",
        "auto.create.topics.enable=false",
    ),
    "no cleaner": ({"log.cleaner.enable": "false"}, {}, 1, Level.FAIL, "never compacts", "log.cleaner.enable=true"),
}


@pytest.mark.parametrize(
    ("settings", "kafka", "brokers", "level", "what", "remedy"), BROKERS.values(), ids=BROKERS.keys()
)
def test_a_broker_that_breaks_a_promise(
    facts: BrokerFacts,
    settings: dict[str, str],
    kafka: dict[str, Any],
    brokers: int,
    level: Level,
    what: str,
    remedy: str,
) -> None:
    """Each setting that the delivery promise depends on fails with the value that corrects it."""
    changed = dataclasses.replace(facts, brokers=brokers, settings={**facts.settings, **settings})
    found = judge_broker(changed, make_config("postgresql://unused", "localhost:9092", "unused", kafka=kafka))
    assert_found(found, level, "broker", what, remedy)


def test_a_broker_whose_settings_cannot_be_read(facts: BrokerFacts) -> None:
    """An old broker version fails, and settings that may not be read give a warning."""
    changed = dataclasses.replace(facts, version=(2, 4), settings={})
    found = list(judge_broker(changed, make_config("postgresql://unused", "localhost:9092", "unused")))
    assert_found(found, Level.FAIL, "broker", "Kafka 2.4 is too old")
    assert_found(found, Level.WARN, "broker", "may not read", "DescribeConfigs")


def test_servers_that_do_not_answer(tmp_path: Path, prefix: str, tailrace: StartProcess) -> None:
    """Servers that do not answer give one line each and exit code 1, without traceback or password.

    `--json` is one document. A problem of the config alone, a webhook key sent in plain text, is still reported.
    """
    config = tmp_path / "tailrace.toml"
    servers = config_text("postgresql://u:hunter2@127.0.0.1:1/db", "127.0.0.1:1", prefix)
    config.write_text(f'{servers}[alerts]\nwebhook = "http://a.example/hunter2"\nheaders = {{ X-Key = "hunter2" }}\n')
    plain = tailrace("check", "--config", str(config))
    as_json = tailrace("check", "--json", "--config", str(config))
    plain.expect_exit(1)
    as_json.expect_exit(1)
    assert plain.output.count("FAIL  ") == 2
    document = json.loads(as_json.output)
    assert document["level"] == "FAIL"
    assert document["counts"] == {"ok": 1, "warn": 1, "fail": 2}
    assert [finding["place"] for finding in document["findings"]] == ["server", "broker", "server", "alerts"]
    for said in (plain, as_json):
        assert "hunter2" not in said.output + said.errors
        assert "Traceback" not in said.output + said.errors


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On a terminal, names are shown unchanged, also if they look like markup, and the exit code is the same."""
    findings = [ok("table public.[red]", "fine"), fail("table public.[/red]", "not fine", "Mend it.")]
    monkeypatch.setattr(command, "inspect", lambda *_: findings)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    config = tmp_path / "tailrace.toml"
    config.write_text(config_text("postgresql://unused", "localhost:9092", "unused"))
    assert command.check.main(["--config", str(config)], standalone_mode=False) == 1
    shown = capsys.readouterr().out
    for text in ("table public.[red]", "table public.[/red]", "→ Mend it.", "1 OK, 0 WARN, 1 FAIL"):
        assert text in shown


def test_one_side_down_leaves_the_other(
    database: Database, prefix: str, tmp_path: Path, tailrace: StartProcess
) -> None:
    """Without Kafka the source is still checked, and checks that need the progress record say that it is missing."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = tmp_path / "tailrace.toml"
    config.write_text(config_text(database.dsn, "127.0.0.1:1", prefix))
    check = tailrace("check", "--json", "--config", str(config))
    check.expect_exit(1)
    found = from_json(check.output)
    assert_found(found, Level.FAIL, "broker", "Kafka did not answer", "[kafka] bootstrap")
    assert_found(found, Level.OK, "table public.t", "has the key")
    assert_found(found, Level.WARN, f"slot tailrace_{prefix}", "could not be read")

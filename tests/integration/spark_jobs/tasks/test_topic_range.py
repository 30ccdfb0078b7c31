"""Tasks read ranges of topics: every committed record between two offsets, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdc.config import load_config
from cdc.errors import RefusedError, TransientError
from spark_jobs.sync.topic_facts import read_topic_facts
from spark_jobs.tasks.range_tasks import _of_one
from spark_jobs.tasks.topic_range import TopicRange, read_ranges
from tests.harness.kafka.topics import create_topic


@pytest.fixture
def topic(kafka_bootstrap: str, prefix: str) -> str:
    """Partition 0: a0 to a4, five that were aborted, b0 and b1; partition 1: c0, c1. A control record after each."""
    name = f"{prefix}.public.t"
    create_topic(kafka_bootstrap, name, 2, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": name})
    producer.init_transactions()
    for partition, letter, count, commit in (
        (0, "a", 5, True),
        (0, "x", 5, False),
        (0, "b", 2, True),
        (1, "c", 2, True),
    ):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(name, f"{letter}{number}".encode(), f"{letter}{number}".encode(), partition)
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    return name


def test_what_is_committed_is_read_to_the_end(kafka_bootstrap: str, topic: str) -> None:
    """A range that starts and ends anywhere gives the committed records of all its partitions, without aborted ones."""
    options = {"bootstrap.servers": kafka_bootstrap}

    def read(*ranges: tuple[int, int, int]) -> list[str]:
        wanted = [TopicRange(topic, *each) for each in ranges]
        return sorted((each.key() or b"").decode() for some in read_ranges(options, wanted) for each in some)

    everything = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "c0", "c1"]
    assert read((0, 0, 15), (1, 0, 3)) == everything
    assert read((0, 0, 15)) == everything[:7], "the consumer is used again, for one of them"
    assert read((0, 3, 13)) == ["a3", "a4", "b0"]
    assert read((0, 5, 12)) == [], "only aborted records are in this range"
    assert read((0, 1, 2), (1, 1, 2)) == ["a1", "c1"]


def test_records_that_are_gone_are_missed(kafka_bootstrap: str, topic: str) -> None:
    """A range that the topic no longer has is an error, and the next range is read normally."""
    options = {"bootstrap.servers": kafka_bootstrap}
    with pytest.raises(TransientError, match="could not be read"):
        list(read_ranges(options, [TopicRange(topic, 1, 100, 200)]))
    found = [each.key() for some in read_ranges(options, [TopicRange(topic, 1, 0, 3)]) for each in some]
    assert found == [b"c0", b"c1"]


def test_nobody_has_to_read_to_the_end(kafka_bootstrap: str, topic: str) -> None:
    """One that is left half-way and closed leaves nothing behind for the next."""
    options = {"bootstrap.servers": kafka_bootstrap}
    half_way = read_ranges(options, [TopicRange(topic, 0, 0, 15)])
    assert next(half_way)
    half_way.close()
    found = [each.key() for some in read_ranges(options, [TopicRange(topic, 1, 1, 3)]) for each in some]
    assert found == [b"c1"]


def test_a_record_without_a_version_is_refused_with_its_place(kafka_bootstrap: str, topic: str) -> None:
    """Nobody can say where a stranger's record belongs; a person is told where it is and what to do."""
    (some,) = read_ranges({"bootstrap.servers": kafka_bootstrap}, [TopicRange(topic, 1, 1, 3)])
    with pytest.raises(RefusedError, match=r"public\.t, partition 1, offset 1: a record without a version") as refusal:
        list(_of_one(some))
    assert "audit --topic --repair" in str(refusal.value.remedy)


def test_a_topic_that_is_gone_is_named_with_its_remedy(
    kafka_bootstrap: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    """Kafka describes the settings of a topic that does not exist as none at all."""
    path = tmp_path / "tailrace.toml"
    path.write_text(
        f'[source]\ndsn = "postgresql://nobody@127.0.0.1:1/x"\n[kafka]\nbootstrap = "{kafka_bootstrap}"\n'
        f'prefix = "{prefix}"\n'
    )
    config = load_config(path)
    assert read_topic_facts(config, [topic])[topic].starts == [0, 0]
    with pytest.raises(TransientError, match=f"Topic {prefix}.public.gone is gone") as missing:
        read_topic_facts(config, [topic, f"{prefix}.public.gone"])
    assert "tailrace recover" in str(missing.value)

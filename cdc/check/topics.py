"""Checks of the existing topics: partitions, settings, and agreement with the progress record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka.admin import ConfigResource, ConfigResourceType

from cdc.check.findings import Finding, fail, ok, refusal, warn
from cdc.config import Config, KafkaConfig
from cdc.errors import RefusedError
from cdc.kafka.admin import open_admin
from cdc.kafka.topics import Topic, Topics
from cdc.names import Control, control_topic
from cdc.positions import continuity
from cdc.positions.progress import Progress, read_progress
from cdc.publishing.parked import Parked
from cdc.tables.event_settings import name_of, pipeline_digest, recorded_settings_mismatch, refuse_removed
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import copy_command, incomplete
from cdc.units import in_rows

_NEW_PREFIX = "Use another [kafka] prefix."
_RECOVER = "Run: tailrace recover"
_ALTER = "Run: kafka-configs --bootstrap-server … --alter --entity-type topics --entity-name {topic} --add-config {to}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The result of reading the progress record.

    `known` False: it could not be read. `progress` None with `known` True: there is no record yet.
    """

    known: bool
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTopic:
    """A topic with its end offset and settings."""

    topic: Topic
    end: int  # the sum of the end offsets of all partitions
    settings: Mapping[str, str]


def recorded_progress(kafka: KafkaConfig, topics: Topics) -> Recorded:
    """Read the last committed progress record without fencing, so that a running capture is not interrupted."""
    name = control_topic(kafka.prefix, Control.PROGRESS)
    if name not in topics.describe([name]):
        return Recorded(known=True)
    return Recorded(known=True, progress=read_progress(kafka.client_options(), name, timeout_seconds=10))


def read_topics(kafka: KafkaConfig, topics: Topics, names: Iterable[str]) -> dict[str, CheckedTopic]:
    """Return end offsets and settings of those topics that exist."""
    found = topics.describe(names)
    if not found:
        return {}
    ends = topics.end_offsets({name: topic.partitions for name, topic in found.items()})
    settings = _settings(kafka, found)
    return {
        name: CheckedTopic(topic=topic, end=sum(ends[name]), settings=settings.get(name, {}))
        for name, topic in found.items()
    }


def judge_tables_topics(
    kafka: KafkaConfig, names: Iterable[str], found: Mapping[str, CheckedTopic], recorded: Recorded
) -> Iterator[Finding]:
    """Yield the findings about the table topics."""
    for name in names:
        place = f"topic {name}"
        facts = found.get(name)
        if facts is None:
            if recorded.progress is None or name not in recorded.progress.topic_ids:
                yield ok(place, "capture creates it")
            continue  # `judge_topic_content` reports a missing topic that is in the progress record
        problems = list(_shape(kafka, name, facts))
        if recorded.known and recorded.progress is None and facts.end:
            problems.append(
                warn(
                    place,
                    f"It already holds {facts.end} records, but capture has not started yet: rows that the source no "
                    "longer has would stay in it.",
                    f"Delete the topic. Or: {_NEW_PREFIX}",
                )
            )
        yield from problems
        if not problems:
            yield ok(place, f"is compacted, with {facts.topic.partitions} partitions")


def judge_control_topics(kafka: KafkaConfig, found: Mapping[str, CheckedTopic]) -> Iterator[Finding]:
    """Yield the findings about `__progress` and `__schema`, which must never lose a record to retention."""
    for control in (Control.PROGRESS, Control.SCHEMA):
        name = control_topic(kafka.prefix, control)
        facts = found.get(name)
        if facts is None:
            continue
        if facts.topic.partitions != 1:
            yield fail(f"topic {name}", f"It has {facts.topic.partitions} partitions; expected 1.", _NEW_PREFIX)
        yield from _policy(name, facts)


def judge_topic_content(progress: Progress, topics: Topics) -> Finding:
    """Compare ids, partition counts, cleanup policies and end offsets with the progress record."""
    try:
        continuity.check_topics(progress, topics)
    except RefusedError as error:
        return refusal("topics", error, _RECOVER)
    return ok("topics", f"ids and end offsets of {len(progress.topic_ids)} topics agree with the progress record")


def control_names(kafka: KafkaConfig) -> list[str]:
    """Return the names of the control topics that `judge_control_topics` checks."""
    return [control_topic(kafka.prefix, control) for control in (Control.PROGRESS, Control.SCHEMA)]


def _shape(kafka: KafkaConfig, name: str, facts: CheckedTopic) -> Iterator[Finding]:
    place, settings = f"topic {name}", facts.settings
    if facts.topic.partitions != kafka.partitions:
        yield fail(
            place,
            f"It has {facts.topic.partitions} partitions, but [kafka] partitions is {kafka.partitions}.",
            f"Set [kafka] partitions = {facts.topic.partitions}; to re-partition, run: tailrace recover",
        )
    yield from _policy(name, facts)
    largest = int(settings.get("max.message.bytes", kafka.max_message_bytes))
    if largest < kafka.max_message_bytes:
        yield fail(
            place,
            f"Its max.message.bytes is {largest}, but [kafka] max_message_bytes is {kafka.max_message_bytes}: "
            "the broker would reject a larger row, and capture's transaction would fail.",
            _alter(name, f"max.message.bytes={kafka.max_message_bytes}"),
        )
    retention = int(settings.get("delete.retention.ms", kafka.delete_retention_milliseconds))
    if retention < kafka.delete_retention_milliseconds:
        yield warn(
            place,
            f"Its delete.retention.ms is {retention}, but the config has {kafka.delete_retention_milliseconds}: "
            "a store that lags by more than that misses deletes.",
            _alter(name, f"delete.retention.ms={kafka.delete_retention_milliseconds}"),
        )
    if settings.get("unclean.leader.election.enable") == "true" and kafka.replication_factor > 1:
        yield fail(
            place,
            "Its unclean.leader.election.enable is true: the topic may lose acknowledged records.",
            _alter(name, "unclean.leader.election.enable=false"),
        )
    min_isr = int(settings.get("min.insync.replicas", 1))
    if min_isr > kafka.replication_factor:
        yield fail(
            place,
            f"Its min.insync.replicas is {min_isr}, but [kafka] replication_factor is {kafka.replication_factor}: "
            "the broker refuses every write.",
            _alter(name, f"min.insync.replicas={max(1, kafka.replication_factor - 1)}"),
        )


def _policy(name: str, facts: CheckedTopic) -> Iterator[Finding]:
    policy = facts.settings.get("cleanup.policy", "compact")
    if policy != "compact":
        yield fail(
            f"topic {name}",
            f"Its cleanup.policy is {policy}, expected compact: Kafka may have deleted rows from it.",
            _alter(name, "cleanup.policy=compact") + " If Kafka has deleted rows, run: tailrace recover",
        )


def _alter(topic: str, to: str) -> str:
    return _ALTER.format(topic=topic, to=to)


def _settings(kafka: KafkaConfig, names: Iterable[str]) -> dict[str, dict[str, str]]:
    admin = open_admin(kafka)
    try:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        described = admin.describe_configs(resources, config_filter="all").get("topic", {})
    finally:
        admin.close()
    return {
        name: {key: entry["value"] for key, entry in settings.items() if entry["value"] is not None}
        for name, settings in described.items()
    }


def judge_parked(parked: Iterable[Parked], states: TableStates | None) -> Iterator[Finding]:
    """Yield, by topic, the number of rows that capture has parked because they were too large to publish."""
    tables = {state.topic for state in (states.tables.values() if states is not None else ())}
    counts = Counter(row.topic for row in parked if not row.store and row.topic in tables)
    for name, count in sorted(counts.items()):
        yield warn(
            f"topic {name}",
            f"{in_rows(count, 'is', 'are')} parked: too large to publish, so no store has them.",
            "`tailrace parked list` lists them. Raise [kafka] max_message_bytes, restart capture, and run:"
            " tailrace parked retry",
        )


def judge_completeness(kafka: KafkaConfig, progress: Progress, states: TableStates | None) -> Iterator[Finding]:
    """Yield the incomplete tables, and a failure if the record of them is lost.

    A table is incomplete if its existing rows changed without row events, for example by a schema change.
    """
    if states is None and progress.state in ("copying", "streaming"):
        name = control_topic(kafka.prefix, Control.SCHEMA)
        yield refusal(f"topic {name}", continuity.lost_states(name), _RECOVER)
    for name, mark in (states.pending if states is not None else {}).items():
        yield warn(f"topic {name}", incomplete(mark), f"While capture runs, run: {copy_command(states, name)}")


def judge_settings(config: Config, progress: Progress, states: TableStates | None) -> Iterator[Finding]:
    """Yield the tables for which this config would produce other events than capture's present config."""
    if states is None or progress.settings == pipeline_digest(config):
        return
    try:
        refuse_removed(config, states, states.tables)
    except RefusedError as error:
        yield refusal("masks", error, _RECOVER)
        return
    for oid, state in states.tables.items():
        reason = recorded_settings_mismatch(config, states, {oid: name_of(state)})
        if reason is not None:
            yield warn(
                f"table {name_of(state)}",
                f"{reason[:1].upper()}{reason[1:]}: Tailrace refuses a snapshot or a repair with this config.",
                "Use capture's config. If the change is intended, restart capture: the table gets a new snapshot then.",
            )

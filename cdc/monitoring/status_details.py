"""Computes single parts of the status record from the readings: remaining records, partitions, builds, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cdc.monitoring import status_record
from cdc.monitoring.facts.kafka import KafkaFacts
from cdc.monitoring.facts.store import StoreFacts
from cdc.monitoring.process_file import REFUSED
from cdc.names import parse_topic


def refusal_of(
    where: str, kafka_facts: KafkaFacts | None, process_errors: Sequence[status_record.ProcessError]
) -> status_record.ProcessError | None:
    """Return why capture ("capture") or a store's sync ("store NAME") refuses to run, as the process reported it.

    The report comes from its note in Kafka, or from `tailrace run` on this host. The latter is available even if Kafka
    does not answer.
    """
    note = kafka_facts.refusals.get(where) if kafka_facts is not None else None
    if note is not None:
        return status_record.ProcessError(
            where=where, reason=f"{REFUSED}{note.reason}", remedy=note.remedy, refused=True
        )
    return next((each for each in process_errors if each.refused and each.where == where), None)


def behind(kafka_facts: KafkaFacts, applied: Mapping[str, Sequence[int]], topics: Iterable[str]) -> int:
    """Return how many records the store still has to apply.

    A store that has applied everything up to the end offset in the progress record is complete. What follows that
    offset is a transaction marker, not a record. During the initial snapshot this rule does not apply, because the
    progress record does not cover the snapshot's rows yet.
    """
    known = (
        kafka_facts.progress.end_offsets
        if kafka_facts.progress is not None and kafka_facts.progress.state == "streaming"
        else {}
    )
    to_go = 0
    for topic in topics:
        ends = kafka_facts.ends[topic]
        offsets = applied.get(topic, [0] * len(ends))
        for end, published, offset in zip(ends, known.get(topic, ends), offsets, strict=False):
            to_go += max(0, end - offset) if offset < published else 0
    return to_go


def partitions(
    ends: Sequence[int],
    topic: str,
    stores: Mapping[str, StoreFacts | None],
    rate: Callable[[int, int], float | None],
) -> tuple[status_record.PartitionStatus, ...]:
    """Return the status of a topic's partitions. `rate` returns the records per second of a partition and its end."""
    places = {
        name: facts.position.topics[topic].next_offsets
        for name, facts in stores.items()
        if facts is not None and facts.position is not None and topic in facts.position.topics
    }
    return tuple(
        status_record.PartitionStatus(
            number=number,
            end=end,
            records_per_second=rate(number, end),
            applied={name: offsets[number] for name, offsets in places.items() if number < len(offsets)},
        )
        for number, end in enumerate(ends)
    )


def readable(topic: str) -> str:
    """Return the name of the table of a topic; the topic's name if it is not a table topic."""
    parsed = parse_topic(topic)
    return f"{parsed.schema}.{parsed.table}" if parsed is not None else topic


def building(name: str, facts: StoreFacts | None, kafka_facts: KafkaFacts) -> status_record.BuildStatus | None:
    """Return the build that is in progress. The store shows that there is one; the build's note shows how far it is."""
    if facts is None or facts.loading is None:
        return None
    generation = facts.loading
    note = kafka_facts.builds.get(name)
    if note is None or note.done or note.generation != generation.number:
        return status_record.BuildStatus(generation=generation.number, began=generation.created_ms / 1000)
    seconds = (note.written_ms - note.began_ms) / 1000
    left = note.total_records - note.records
    return status_record.BuildStatus(
        generation=generation.number,
        began=note.began_ms / 1000,
        records=note.records,
        total_records=note.total_records,
        seconds_left=seconds * left / note.records if note.records and seconds > 0 else None,
    )


def snapshots(kafka_facts: KafkaFacts | None) -> tuple[status_record.SnapshotStatus, ...]:
    """Return the snapshots that are in progress or planned."""
    if kafka_facts is None:
        return ()
    under_way = []
    for copy in kafka_facts.snapshots.values():
        if copy.state not in ("open", "planned"):
            continue
        seen = kafka_facts.snapshot_progress.get(copy.id)
        began = copy.started_ms / 1000
        under_way.append(
            status_record.SnapshotStatus(id=copy.id, kind=copy.kind, began=began, total_bytes=copy.size_bytes)
            if seen is None
            else status_record.SnapshotStatus(
                id=copy.id,
                kind=copy.kind,
                began=began,
                rows=seen.rows,
                size_bytes=seen.size_bytes,
                total_bytes=seen.total_bytes,
                rows_per_second=seen.rows_per_second,
                seconds_left=seen.seconds_left,
            )
        )
    return tuple(under_way)

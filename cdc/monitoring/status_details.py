"""Parts of the record that need nothing but what was read: records to go, partitions, builds and copies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cdc.monitoring import status_record
from cdc.monitoring.kafka_facts import KafkaFacts
from cdc.monitoring.process_file import REFUSED
from cdc.monitoring.store_facts import StoreFacts
from cdc.names import parse_topic


def refusal_of(
    where: str, log: KafkaFacts | None, troubles: Sequence[status_record.ProcessError]
) -> status_record.ProcessError | None:
    """Why capture ("capture") or a store's sync ("store NAME") does not run, in its own words.

    From its note in Kafka; or from `tailrace run` on this host, which knows it also when Kafka does not answer.
    """
    note = log.refusals.get(where) if log is not None else None
    if note is not None:
        return status_record.ProcessError(
            where=where, reason=f"{REFUSED}{note.reason}", remedy=note.remedy, refused=True
        )
    return next((each for each in troubles if each.refused and each.where == where), None)


def behind(log: KafkaFacts, applied: Mapping[str, Sequence[int]], topics: Iterable[str]) -> int:
    """Records to go. Who has read to the end that progress names has everything: what follows is no record.

    (A transaction's own marker lies behind it. While a first copy runs, progress does not know of its rows yet.)
    """
    known = log.progress.end_offsets if log.progress is not None and log.progress.state == "streaming" else {}
    to_go = 0
    for topic in topics:
        ends = log.ends[topic]
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
    """`rate`: of a partition's number and end, how fast that moves."""
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
    parsed = parse_topic(topic)
    return f"{parsed.schema}.{parsed.table}" if parsed is not None else topic


def building(name: str, facts: StoreFacts | None, log: KafkaFacts) -> status_record.BuildStatus | None:
    """From the store itself that something is being built; from the builder's notes how far it is."""
    if facts is None or facts.loading is None:
        return None
    generation = facts.loading
    note = log.builds.get(name)
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


def copies(log: KafkaFacts | None) -> tuple[status_record.SnapshotStatus, ...]:
    if log is None:
        return ()
    under_way = []
    for copy in log.copies.values():
        if copy.state not in ("open", "planned"):
            continue
        seen = log.copy_progress.get(copy.id)
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

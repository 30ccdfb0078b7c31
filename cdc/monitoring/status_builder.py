"""Builds the status record from the readers' answers. No I/O. It keeps earlier figures only for rates and stalls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc.config import Config
from cdc.lsn import LSN
from cdc.monitoring import status_record
from cdc.monitoring.facts.kafka import KafkaFacts
from cdc.monitoring.facts.source import SourceFacts
from cdc.monitoring.facts.store import StoreFacts
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.monitoring.health_rules import HealthRules
from cdc.monitoring.status_details import behind, building, partitions, readable, refusal_of, snapshots
from cdc.monitoring.trends import StallDetector, Trends
from cdc.positions.wait import applied_lsn, is_of

_WINDOW_SECONDS = 60.0
_SPEED_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The last answer of each reader. If a reader did not answer at the last poll, `problems` has the reason."""

    now: float
    source: SourceFacts | None
    kafka_facts: KafkaFacts | None
    stores: Mapping[str, StoreFacts | None]
    problems: Mapping[str, str] = field(default_factory=dict)  # under "source", "log" and the stores' names
    process_errors: Sequence[status_record.ProcessError] = ()


class StatusBuilder:
    """Builds one status record per poll. `clock` is shared with the reader of Kafka."""

    def __init__(self, config: Config, clock: WalClock) -> None:
        self._config = config
        self._clock = clock
        self._speeds = Trends(_SPEED_SECONDS, of_counters=True)
        self._falls = Trends(_WINDOW_SECONDS)
        self._motion = StallDetector()
        self._judge = HealthRules(config)

    def assemble(self, readings: Readings) -> status_record.PipelineStatus:
        """Return the status record for these readings."""
        if readings.source is not None and "source" not in readings.problems:
            self._clock.see(int(readings.source.lsn), readings.source.time)
        source = self._source(readings)
        slot = self._slot(readings)
        topics = self._topics(readings, slot)
        stores = tuple(self._store(name, readings, topics) for name in readings.stores)
        return status_record.PipelineStatus(
            read_at=readings.now,
            prefix=self._config.kafka.prefix,
            source=source,
            slot=slot,
            topics=topics,
            stores=stores,
            tables=self._tables(readings),
            snapshots=snapshots(readings.kafka_facts),
            process_errors=tuple(readings.process_errors),
        )

    def _source(self, readings: Readings) -> status_record.SourceStatus:
        problem = readings.problems.get("source")
        lsn = readings.source.lsn if readings.source is not None and problem is None else None
        rate = self._clock.bytes_per_second(readings.now, _WINDOW_SECONDS) if lsn is not None else None
        return self._judge.source(status_record.SourceStatus(lsn=lsn, wal_bytes_per_second=rate, problem=problem))

    def _slot(self, readings: Readings) -> status_record.SlotStatus:
        name = self._config.source.slot
        facts = readings.source
        if facts is None or facts.slot is None:
            has_begun = readings.kafka_facts is not None and readings.kafka_facts.progress is not None
            known = facts is not None and "source" not in readings.problems
            return self._judge.slot(
                status_record.SlotStatus(name=name, exists=False), is_known=known, has_begun=has_begun
            )
        row = facts.slot
        retained = max(0, facts.lsn - row.restart) if row.restart is not None else None
        left, limit = row.left_bytes, None
        if left is None and self._config.slot.max_bytes and retained is not None:
            left = max(0, self._config.slot.max_bytes - retained)
        if left is not None and retained is not None:
            limit = max(0, left) + retained
        found = status_record.SlotStatus(
            name=name,
            exists=True,
            active=row.active,
            confirmed=row.confirmed,
            bytes=max(0, facts.lsn - row.confirmed) if row.confirmed is not None else None,
            retained_bytes=retained,
            left_bytes=left,
            limit_bytes=limit,
            seconds_left=self._seconds_left(left, readings.now, active=row.active),
            wal_status=row.wal_status,
            invalidation_reason=row.invalidation_reason,
        )
        return self._judge.slot(found, is_known="source" not in readings.problems, has_begun=True)

    def _seconds_left(self, left: int | None, now: float, *, active: bool) -> float | None:
        fall = self._falls.rate("left", now, left)
        if fall is None and not active and left is not None:
            # After one reading there is no rate yet. No process reads the slot, so it fills as fast as the WAL grows.
            rate = self._clock.bytes_per_second(now, _WINDOW_SECONDS)
            fall = -rate if rate is not None else None
        if left is None or fall is None or fall >= 0:
            return None
        return max(0.0, left / -fall)

    def _topics(self, readings: Readings, slot: status_record.SlotStatus) -> status_record.TopicsStatus:
        now, problem = readings.now, readings.problems.get("log")
        progress = readings.kafka_facts.progress if readings.kafka_facts is not None else None
        if readings.kafka_facts is None or progress is None:
            return self._judge.topics(
                status_record.TopicsStatus(problem=problem),
                slot,
                is_reading=False,
                still_seconds=0.0,
                refusal=refusal_of("capture", readings.kafka_facts, readings.process_errors),
            )
        source = self._source_lsn(readings)
        until, seconds = self._age(progress.confirm_lsn, source, now, progress.commit_time_us / 1e6)
        written = progress.written_ms / 1000
        idle = source is None or progress.confirm_lsn >= source
        place = (progress.position, progress.seq, progress.confirm_lsn)
        still = now - self._motion.still_since("topics", place, idle=idle, now=now, at_first=written)
        found = status_record.TopicsStatus(
            lsn=LSN(progress.confirm_lsn),
            state=progress.state,
            bytes=max(0, source - progress.confirm_lsn) if source is not None else None,
            seconds=seconds,
            applied_until=until,
            heartbeat_seconds=max(0.0, now - written),
            records_per_second=self._speeds.rate("topics", now, sum(map(sum, readings.kafka_facts.ends.values()))),
            parked=sum(readings.kafka_facts.parked_by_capture.values()),
            problem=problem,
        )
        is_reading = slot.exists and slot.active
        refusal = refusal_of("capture", readings.kafka_facts, readings.process_errors)
        return self._judge.topics(found, slot, is_reading=is_reading, still_seconds=still, refusal=refusal)

    def _store(self, name: str, readings: Readings, topics: status_record.TopicsStatus) -> status_record.StoreStatus:
        kafka_facts = readings.kafka_facts or KafkaFacts()
        problem = readings.problems.get(name)
        facts = readings.stores[name]
        refusal = refusal_of(f"store {name}", readings.kafka_facts, readings.process_errors)
        common: dict[str, object] = {
            "name": name,
            "kind": self._config.stores[name].kind,
            **self._parked(name, readings.kafka_facts, facts),
            "paused": name in kafka_facts.paused,
            "building": building(name, facts, kafka_facts),
            "audit": kafka_facts.audits.get(name),
            "problem": problem,
        }
        if facts is None or facts.position is None:
            self._speeds.rate(f"store {name}", readings.now, None)
            found = status_record.StoreStatus(**common)  # type: ignore[arg-type]
            return self._judge.store(found, topics, still_seconds=0.0, own_seconds=None, refusal=refusal)
        return self._served(name, readings, topics, facts, kafka_facts, common, refusal)

    def _served(
        self,
        name: str,
        readings: Readings,
        topics: status_record.TopicsStatus,
        facts: StoreFacts,
        kafka_facts: KafkaFacts,
        common: Mapping[str, object],
        refusal: status_record.ProcessError | None,
    ) -> status_record.StoreStatus:
        position, now = facts.position, readings.now
        assert position is not None  # noqa: S101 - the caller checks it
        source, progress = self._source_lsn(readings), kafka_facts.progress
        published, base_from = (progress.confirm_lsn, progress.base_from) if progress is not None else (0, 0)
        # A position from another server or another pipeline does not apply to this one's WAL.
        lsn = applied_lsn(position, progress)
        known = position.topics if progress is None or is_of(position, progress) else {}
        applied = {topic: place.next_offsets for topic, place in known.items()}
        read = self._topics_of(name, kafka_facts, applied)
        records = behind(kafka_facts, applied, read)
        point = kafka_facts.published.covered(applied, kafka_facts.ends.keys() - read)
        if point is not None and int(point.version.position) >= base_from:
            lsn = max(lsn, point.lsn)  # the store may be further than the position that its sync has recorded
        until, seconds = self._age(lsn, source, now, position.caught_up_ms / 1000)
        own_seconds = 0.0 if lsn >= published and not records else seconds
        still = now - self._motion.still_since(
            f"store {name}",
            (lsn, tuple(applied.items())),
            idle=not records and lsn >= published,
            now=now,
            at_first=position.written_ms / 1000,
        )
        found = status_record.StoreStatus(
            lsn=LSN(position.lsn),
            bytes=max(0, source - lsn) if source is not None else None,
            records=records,
            seconds=seconds,
            applied_until=until,
            records_per_second=self._speeds.rate(f"store {name}", now, sum(map(sum, applied.values()))),
            generation=facts.serving.number if facts.serving is not None else None,
            **common,  # type: ignore[arg-type]
        )
        return self._judge.store(found, topics, still_seconds=still, own_seconds=own_seconds, refusal=refusal)

    def _parked(self, name: str, kafka_facts: KafkaFacts | None, facts: StoreFacts | None) -> dict[str, int | None]:
        """Count the rows that the store's sync has parked, and those that capture has parked of the store's tables."""
        if kafka_facts is None:
            return {"parked": None, "parked_by_capture": None}
        position = facts.position if facts is not None else None
        read = self._topics_of(name, kafka_facts, {} if position is None else dict.fromkeys(position.topics, ()))
        by_capture = sum(count for topic, count in kafka_facts.parked_by_capture.items() if topic in read)
        own = sum(count for (store, _), count in kafka_facts.parked.items() if store == name)
        return {"parked": own + by_capture, "parked_by_capture": by_capture}

    def _topics_of(self, name: str, kafka_facts: KafkaFacts, applied: Mapping[str, Sequence[int]]) -> set[str]:
        """Return the topics that the store reads, and those that its sync has yet to discover."""
        tables = {state.topic: (state.schema, state.table) for state in kafka_facts.states.tables.values()}
        gets = self._config.stores[name].gets
        return {topic for topic in kafka_facts.ends if topic in applied or (topic in tables and gets(*tables[topic]))}

    def _source_lsn(self, readings: Readings) -> int | None:
        known = readings.source is not None and "source" not in readings.problems
        return int(readings.source.lsn) if known and readings.source is not None else None

    def _age(self, lsn: int, source: int | None, now: float, otherwise: float) -> tuple[float | None, float | None]:
        """Return the time up to which a hop at `lsn` has every commit, and the seconds since then.

        While the source does not answer, its last known LSN takes its place. `otherwise`: the time to use if `lsn` is
        older than every observation of the clock.
        """
        newest = source if source is not None else self._clock.newest_lsn
        if newest is None or lsn >= newest:
            return now, 0.0
        until = self._clock.until(lsn) or otherwise
        return (until, max(0.0, now - until)) if until else (None, None)

    def _tables(self, readings: Readings) -> tuple[status_record.TableStatus, ...]:
        kafka_facts = readings.kafka_facts
        if kafka_facts is None:
            return ()
        names = {state.topic: f"{state.schema}.{state.table}" for state in kafka_facts.states.tables.values()}
        found = []
        for topic in sorted(kafka_facts.ends):
            mark = kafka_facts.states.pending.get(topic)

            def rate(number: int, end: int, topic: str = topic) -> float | None:
                return self._speeds.rate((topic, number), readings.now, end)

            found.append(
                status_record.TableStatus(
                    name=names.get(topic) or readable(topic),
                    topic=topic,
                    records_per_second=self._speeds.rate(("table", topic), readings.now, sum(kafka_facts.ends[topic])),
                    partitions=partitions(kafka_facts.ends[topic], topic, readings.stores, rate),
                    incomplete=mark.reason if mark is not None else None,
                    parked=kafka_facts.parked_by_capture.get(topic, 0),
                )
            )
        return tuple(found)

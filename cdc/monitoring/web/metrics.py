"""The record as Prometheus metrics. Every name is here and in docs/reference/metrics.md; nothing else makes one.

A figure that nobody knows is absent, never 0: a rule on `absent()` or on `tailrace_hop_up` notices that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc import __version__
from cdc.monitoring.status_record import HealthLevel, PipelineStatus, StoreStatus

Labels = tuple[str, ...]
Value = float | int | bool | None


class _Gauge(NamedTuple):
    name: str
    help: str
    labels: Labels
    values: Callable[[PipelineStatus], Iterable[tuple[Labels, Value]]]


def _one(value: Callable[[PipelineStatus], Value]) -> Callable[[PipelineStatus], Iterable[tuple[Labels, Value]]]:
    return lambda record: [((), value(record))]


def _stores(value: Callable[[StoreStatus], Value]) -> Callable[[PipelineStatus], Iterable[tuple[Labels, Value]]]:
    return lambda record: [((store.name,), value(store)) for store in record.stores]


def _hop_states(record: PipelineStatus) -> Iterable[tuple[Labels, Value]]:
    return [((hop, state.value), health.state is state) for hop, health in record.hops.items() for state in HealthLevel]


def _table_ends(record: PipelineStatus) -> Iterable[tuple[Labels, Value]]:
    return [
        ((table.name, str(partition.number)), partition.end)
        for table in record.tables
        for partition in table.partitions
    ]


def _table_rates(record: PipelineStatus) -> Iterable[tuple[Labels, Value]]:
    return [
        ((table.name, str(partition.number)), partition.records_per_second)
        for table in record.tables
        for partition in table.partitions
    ]


def _applied(record: PipelineStatus) -> Iterable[tuple[Labels, Value]]:
    return [
        ((store, table.name, str(partition.number)), offset)
        for table in record.tables
        for partition in table.partitions
        for store, offset in partition.applied.items()
    ]


GAUGES: Sequence[_Gauge] = (
    _Gauge(
        "tailrace_reading_timestamp_seconds",
        "When these figures were read.",
        (),
        _one(lambda record: record.read_at),
    ),
    _Gauge(
        "tailrace_ready",
        "1 while no hop is down or stands still, as /readyz says it.",
        (),
        _one(lambda record: record.is_ready),
    ),
    _Gauge("tailrace_hop_state", "1 for the state that a hop is in, 0 for the others.", ("hop", "state"), _hop_states),
    _Gauge("tailrace_source_up", "1 while the source answers.", (), _one(lambda record: record.source.lsn is not None)),
    _Gauge(
        "tailrace_source_lsn_bytes",
        "Where the source's log ends, as a number.",
        (),
        _one(lambda record: None if record.source.lsn is None else int(record.source.lsn)),
    ),
    _Gauge(
        "tailrace_source_wal_bytes_per_second",
        "How fast the source's log grows, over a minute.",
        (),
        _one(lambda record: record.source.wal_bytes_per_second),
    ),
    _Gauge("tailrace_slot_exists", "1 while the slot exists.", (), _one(lambda record: record.slot.exists)),
    _Gauge("tailrace_slot_active", "1 while somebody reads the slot.", (), _one(lambda record: record.slot.active)),
    _Gauge(
        "tailrace_slot_lost",
        "1 when the server has invalidated the slot.",
        (),
        _one(lambda record: record.slot.wal_status == "lost"),
    ),
    _Gauge(
        "tailrace_slot_retained_bytes",
        "Bytes of the log that the server keeps for the slot.",
        (),
        _one(lambda record: record.slot.retained_bytes),
    ),
    _Gauge(
        "tailrace_slot_unconfirmed_bytes",
        "Bytes of the log that capture has not confirmed.",
        (),
        _one(lambda record: record.slot.bytes),
    ),
    _Gauge(
        "tailrace_slot_headroom_bytes",
        "Bytes of the log until the slot is lost; absent without a limit.",
        (),
        _one(lambda record: record.slot.left_bytes),
    ),
    _Gauge(
        "tailrace_slot_seconds_left",
        "Seconds until the slot is lost at the present rate; absent while that does not come nearer.",
        (),
        _one(lambda record: record.slot.seconds_left),
    ),
    _Gauge(
        "tailrace_capture_lag_seconds",
        "Age of the oldest commit that may not be in the topics.",
        (),
        _one(lambda record: record.topics.seconds),
    ),
    _Gauge(
        "tailrace_capture_lag_bytes",
        "Bytes of the log that are not in the topics.",
        (),
        _one(lambda record: record.topics.bytes),
    ),
    _Gauge(
        "tailrace_capture_heartbeat_age_seconds",
        "Since capture last wrote down how far it is.",
        (),
        _one(lambda record: record.topics.heartbeat_seconds),
    ),
    _Gauge(
        "tailrace_capture_records_per_second",
        "Records that come into the topics, over 15 seconds.",
        (),
        _one(lambda record: record.topics.records_per_second),
    ),
    _Gauge(
        "tailrace_capture_parked_rows",
        "Rows of a table that capture could not publish and that wait in __parked: no store has them.",
        ("table",),
        lambda record: [((table.name,), table.parked) for table in record.tables],
    ),
    _Gauge(
        "tailrace_store_up",
        "1 while the store answers.",
        ("store",),
        _stores(lambda store: store.problem is None),
    ),
    _Gauge(
        "tailrace_store_lag_seconds",
        "Age of the oldest commit that the store may not have.",
        ("store",),
        _stores(lambda store: store.seconds),
    ),
    _Gauge(
        "tailrace_store_lag_bytes",
        "Bytes of the log that the store has not applied.",
        ("store",),
        _stores(lambda store: store.bytes),
    ),
    _Gauge(
        "tailrace_store_lag_records",
        "Records in the topics that the store has not applied.",
        ("store",),
        _stores(lambda store: store.records),
    ),
    _Gauge(
        "tailrace_store_records_per_second",
        "Records that the store applies, over 15 seconds.",
        ("store",),
        _stores(lambda store: store.records_per_second),
    ),
    _Gauge(
        "tailrace_store_parked_rows",
        "Rows that the store lacks because they wait in __parked: its sync or capture has parked them.",
        ("store",),
        _stores(lambda store: store.parked),
    ),
    _Gauge(
        "tailrace_store_paused",
        "1 while somebody has paused the store.",
        ("store",),
        _stores(lambda store: store.paused),
    ),
    _Gauge(
        "tailrace_store_generation",
        "Number of the generation that serves.",
        ("store",),
        _stores(lambda store: store.generation),
    ),
    _Gauge(
        "tailrace_store_audit_timestamp_seconds",
        "When the store was last compared with the source.",
        ("store",),
        _stores(lambda store: getattr(store.audit, "ended", None)),
    ),
    _Gauge(
        "tailrace_store_audit_differences",
        "Rows that differed in the last audit.",
        ("store",),
        _stores(lambda store: getattr(store.audit, "differences", None)),
    ),
    _Gauge(
        "tailrace_tables_incomplete",
        "Tables that wait for a copy.",
        (),
        _one(lambda record: sum(table.incomplete is not None for table in record.tables)),
    ),
    _Gauge("tailrace_copies_running", "Copies that are under way.", (), _one(lambda record: len(record.copies))),
    _Gauge(
        "tailrace_topic_end_offset", "Where a partition of a table's topic ends.", ("table", "partition"), _table_ends
    ),
    _Gauge(
        "tailrace_topic_records_per_second",
        "Records that come into a partition of a table's topic, over 15 seconds.",
        ("table", "partition"),
        _table_rates,
    ),
    _Gauge(
        "tailrace_store_applied_offset",
        "The first offset that a store has not applied.",
        ("store", "table", "partition"),
        _applied,
    ),
)
BUILD = "tailrace_build"
READ = "tailrace_reading_age_seconds"


class RecordCollector(Collector):
    """`record` gives the last record, or None before the first."""

    def __init__(self, record: Callable[[], PipelineStatus | None], clock: Callable[[], float] = time.time) -> None:
        self._record = record
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(BUILD, "Which Tailrace this is.", {"version": __version__})
        record = self._record()
        if record is None:
            return
        age = GaugeMetricFamily(READ, "How old these figures are.")
        age.add_metric([], max(0.0, self._clock() - record.read_at))
        yield age
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values(record):
                if value is not None:
                    family.add_metric(list(labels), float(value))
            yield family


def exposition(record: Callable[[], PipelineStatus | None]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RecordCollector(record))
    return generate_latest(registry)

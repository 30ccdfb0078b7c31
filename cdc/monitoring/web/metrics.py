"""The status record as Prometheus metrics. This module defines all of them; docs/reference/metrics.md lists them.

An unknown figure is absent, never 0. Alert rules detect this with `absent()`, `tailrace_source_up` or
`tailrace_store_up`.
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
        "tailrace_status_timestamp_seconds",
        "When these figures were read.",
        (),
        _one(lambda record: record.read_at),
    ),
    _Gauge(
        "tailrace_ready",
        "1 while no hop is down or stalled, as in /readyz.",
        (),
        _one(lambda record: record.is_ready),
    ),
    _Gauge("tailrace_hop_state", "1 for the hop's current state, 0 for the others.", ("hop", "state"), _hop_states),
    _Gauge("tailrace_source_up", "1 while the source answers.", (), _one(lambda record: record.source.lsn is not None)),
    _Gauge(
        "tailrace_source_lsn_bytes",
        "The source's current WAL position, as a number.",
        (),
        _one(lambda record: None if record.source.lsn is None else int(record.source.lsn)),
    ),
    _Gauge(
        "tailrace_source_wal_bytes_per_second",
        "Growth of the source's WAL, over one minute.",
        (),
        _one(lambda record: record.source.wal_bytes_per_second),
    ),
    _Gauge("tailrace_slot_exists", "1 while the slot exists.", (), _one(lambda record: record.slot.exists)),
    _Gauge("tailrace_slot_active", "1 while a process reads the slot.", (), _one(lambda record: record.slot.active)),
    _Gauge(
        "tailrace_slot_lost",
        "1 when the server has invalidated the slot.",
        (),
        _one(lambda record: record.slot.wal_status == "lost"),
    ),
    _Gauge(
        "tailrace_slot_retained_bytes",
        "Bytes of WAL that the server retains for the slot.",
        (),
        _one(lambda record: record.slot.retained_bytes),
    ),
    _Gauge(
        "tailrace_slot_unconfirmed_bytes",
        "Bytes of WAL that capture has not confirmed.",
        (),
        _one(lambda record: record.slot.bytes),
    ),
    _Gauge(
        "tailrace_slot_headroom_bytes",
        "Bytes of WAL until the server invalidates the slot; absent without a limit.",
        (),
        _one(lambda record: record.slot.left_bytes),
    ),
    _Gauge(
        "tailrace_slot_seconds_left",
        "Seconds until the server invalidates the slot at the current rate; absent while the headroom does not shrink.",
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
        "Bytes of WAL that are not in the topics.",
        (),
        _one(lambda record: record.topics.bytes),
    ),
    _Gauge(
        "tailrace_capture_heartbeat_age_seconds",
        "Seconds since capture's last progress record.",
        (),
        _one(lambda record: record.topics.heartbeat_seconds),
    ),
    _Gauge(
        "tailrace_capture_records_per_second",
        "Records published to the topics per second, over 15 seconds.",
        (),
        _one(lambda record: record.topics.records_per_second),
    ),
    _Gauge(
        "tailrace_capture_parked_rows",
        "Rows of a table that capture has parked because it could not publish them; no store has them.",
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
        "Bytes of WAL that the store has not applied.",
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
        "Records that the store applies per second, over 15 seconds.",
        ("store",),
        _stores(lambda store: store.records_per_second),
    ),
    _Gauge(
        "tailrace_store_parked_rows",
        "Rows that the store lacks because its sync or capture has parked them.",
        ("store",),
        _stores(lambda store: store.parked),
    ),
    _Gauge(
        "tailrace_store_paused",
        "1 while the store's sync is paused.",
        ("store",),
        _stores(lambda store: store.paused),
    ),
    _Gauge(
        "tailrace_store_generation",
        "Number of the serving generation.",
        ("store",),
        _stores(lambda store: store.generation),
    ),
    _Gauge(
        "tailrace_store_audit_timestamp_seconds",
        "When the store's last audit ended.",
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
        "Incomplete tables, which need a snapshot.",
        (),
        _one(lambda record: sum(table.incomplete is not None for table in record.tables)),
    ),
    _Gauge("tailrace_snapshots_running", "Snapshots in progress.", (), _one(lambda record: len(record.snapshots))),
    _Gauge(
        "tailrace_topic_end_offset", "End offset of a partition of a table topic.", ("table", "partition"), _table_ends
    ),
    _Gauge(
        "tailrace_topic_records_per_second",
        "Records published to a partition of a table topic per second, over 15 seconds.",
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
READ = "tailrace_status_age_seconds"


class RecordCollector(Collector):
    """Collects the metrics of the last status record. `record` returns it, or None before the first poll."""

    def __init__(self, record: Callable[[], PipelineStatus | None], clock: Callable[[], float] = time.time) -> None:
        self._record = record
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(BUILD, "The version of Tailrace.", {"version": __version__})
        record = self._record()
        if record is None:
            return
        age = GaugeMetricFamily(READ, "Age of these figures.")
        age.add_metric([], max(0.0, self._clock() - record.read_at))
        yield age
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values(record):
                if value is not None:
                    family.add_metric(list(labels), float(value))
            yield family


def exposition(record: Callable[[], PipelineStatus | None]) -> bytes:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RecordCollector(record))
    return generate_latest(registry)

"""Sample statuses of a pipeline for tests of the page, metrics and health rules: made-up figures, judged by the real
rules.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from cdc.config import Config, parse_config
from cdc.lsn import LSN
from cdc.monitoring.health_rules import HealthRules
from cdc.monitoring.status_record import (
    AuditStatus,
    BuildStatus,
    HealthLevel,
    PartitionStatus,
    PipelineStatus,
    ProcessError,
    SlotStatus,
    SnapshotStatus,
    SourceStatus,
    StoreStatus,
    TableStatus,
    TopicsStatus,
)
from cdc.monitoring.web.history import Figures, History, figures_of

GIGABYTE = 10**9
_CONFIG = """
[source]
dsn = "postgresql://tailrace@127.0.0.1:1/shop"
[kafka]
bootstrap = "127.0.0.1:1"
prefix = "shop"
[stores.search]
kind = "elasticsearch"
url = "http://127.0.0.1:1"
[stores.cache]
kind = "redis"
url = "redis://127.0.0.1:1/0"
[stores.warehouse]
kind = "iceberg"
path = "warehouse"
"""


def shop_config(folder: Path, more: str = "") -> Config:
    return parse_config(_CONFIG + more, file=folder / "tailrace.toml", environment={})


def idle(config: Config) -> PipelineStatus:
    """No writes, and every store has everything."""
    now = time.time()
    lsn = LSN.parse("1A/7C03F2D8")
    record = PipelineStatus(
        read_at=now,
        prefix=config.kafka.prefix,
        source=SourceStatus(lsn=lsn, wal_bytes_per_second=38.0),
        slot=SlotStatus(
            name=config.source.slot,
            exists=True,
            active=True,
            confirmed=lsn,
            bytes=0,
            retained_bytes=18_400_000,
            left_bytes=4 * GIGABYTE,
            limit_bytes=4 * GIGABYTE + 18_400_000,
            wal_status="reserved",
        ),
        topics=TopicsStatus(
            lsn=lsn,
            state="streaming",
            bytes=0,
            seconds=0.0,
            applied_until=now,
            heartbeat_seconds=1.4,
            records_per_second=0.0,
        ),
        stores=tuple(
            StoreStatus(
                name=name,
                kind=config.stores[name].kind,
                lsn=lsn,
                bytes=0,
                records=0,
                seconds=0.0,
                applied_until=now,
                records_per_second=0.0,
                generation=number,
                parked=0,
                audit=AuditStatus(ended=now - 3 * 3600, differences=0, verdict="equal"),
            )
            for name, number in (("search", 3), ("cache", 1), ("warehouse", 1))
        ),
        tables=tuple(
            TableStatus(
                name=f"public.{name}",
                topic=f"shop.public.{name}",
                records_per_second=0.0,
                partitions=tuple(
                    PartitionStatus(number=at, end=end + 31 * at, applied=dict.fromkeys(config.stores, end + 31 * at))
                    for at in range(4)
                ),
            )
            for name, end in (("customers", 5_204), ("orders", 40_312), ("order_lines", 129_870), ("products", 812))
        ),
    )
    return _judged(config, record)


def busy(config: Config) -> PipelineStatus:
    """Many writes, and every store keeps up, the warehouse at its own rate."""
    base = idle(config)
    stores = [
        replace(
            each,
            bytes=size,
            records=records,
            seconds=seconds,
            applied_until=base.read_at - seconds,
            records_per_second=rate,
        )
        for each, (size, records, seconds, rate) in zip(
            base.stores,
            ((412_000, 1_904, 0.9, 2_180.0), (96_000, 402, 0.4, 2_204.0), (31_200_000, 51_310, 22.0, 2_090.0)),
            strict=True,
        )
    ]
    tables = [
        replace(table, records_per_second=rate) for table, rate in zip(base.tables, (64, 512, 1590, 31), strict=True)
    ]
    return _judged(
        config,
        replace(
            base,
            source=replace(base.source, wal_bytes_per_second=1_310_000.0),
            topics=replace(base.topics, bytes=41_000, seconds=0.1, records_per_second=2_197.0),
            stores=tuple(stores),
            tables=tuple(tables),
        ),
    )


def store_down(config: Config) -> PipelineStatus:
    """Redis is unreachable; the other stores are unaffected."""
    base = busy(config)
    problem = "Redis cannot be reached: Connection refused"
    cache = replace(
        base.stores[1],
        problem=problem,
        bytes=310_000_000,
        records=184_220,
        seconds=372.0,
        applied_until=base.read_at - 372,
        records_per_second=0.0,
        parked=3,
    )
    trouble = ProcessError(where="sync", reason=f"Retrying: cache: {problem}", state=HealthLevel.BEHIND)
    stores = (base.stores[0], cache, base.stores[2])
    return _judged(config, replace(base, stores=stores, process_errors=(trouble,)))


def slot_nearly_lost(config: Config) -> PipelineStatus:
    """Capture has been stopped for some time, and the server is about to invalidate the slot."""
    base = busy(config)
    slot = replace(
        base.slot,
        active=False,
        bytes=3_780_000_000,
        retained_bytes=3_804_000_000,
        left_bytes=214_000_000,
        limit_bytes=4_018_000_000,
        seconds_left=163.0,
        wal_status="extended",
    )
    topics = replace(
        base.topics,
        bytes=3_780_000_000,
        seconds=2_890.0,
        heartbeat_seconds=2_890.0,
        records_per_second=0.0,
        applied_until=base.read_at - 2_890,
    )
    stores = tuple(
        replace(
            each,
            bytes=3_780_000_000,
            records=0,
            seconds=2_890.0,
            records_per_second=0.0,
            applied_until=base.read_at - 2_890,
        )
        for each in base.stores
    )
    return _judged(config, replace(base, slot=slot, topics=topics, stores=stores))


def bootstrap_under_way(config: Config) -> PipelineStatus:
    """The initial snapshot runs, and a second generation of one store is built while the first one serves."""
    base = busy(config)
    now = base.read_at
    search = replace(
        base.stores[0],
        building=BuildStatus(
            generation=4, began=now - 95, records=1_930_000, total_records=2_704_000, seconds_left=38.0
        ),
    )
    warehouse = StoreStatus(
        name="warehouse", kind="iceberg", parked=0, building=BuildStatus(generation=1, began=now - 12)
    )
    copy = SnapshotStatus(
        id="c1",
        kind="later",
        began=now - 41,
        rows=412_000,
        size_bytes=402_000_000,
        total_bytes=1_280_000_000,
        rows_per_second=10_050.0,
        seconds_left=89.0,
    )
    incomplete = replace(base.tables[3], incomplete="column price changed its type")
    return _judged(
        config,
        replace(
            base, stores=(search, base.stores[1], warehouse), snapshots=(copy,), tables=(*base.tables[:3], incomplete)
        ),
    )


def row_parked(config: Config) -> PipelineStatus:
    """Capture could not publish one row of one table; everything else is in every store."""
    base = busy(config)
    orders = replace(base.tables[1], parked=1)
    stores = tuple(replace(store, parked=1, parked_by_capture=1) for store in base.stores)
    topics = replace(base.topics, parked=1)
    tables = (base.tables[0], orders, *base.tables[2:])
    return _judged(config, replace(base, topics=topics, stores=stores, tables=tables))


SCENES = {
    "idle": idle,
    "busy": busy,
    "store-down": store_down,
    "slot-nearly-lost": slot_nearly_lost,
    "bootstrap": bootstrap_under_way,
    "row-parked": row_parked,
}


def fill_history(history: History, record: PipelineStatus, seconds: float = 3600.0, step: float = 15.0) -> None:
    """Record a history of readings with peaks that leads to this status."""
    for back in range(int(seconds // step), -1, -1):
        ago = back * step
        history.add(record.read_at - ago, _earlier(figures_of(record), ago))


def _earlier(figures: Figures, ago: float) -> Figures:
    waves = 1 + 0.35 * math.sin(ago / 190) + 0.15 * math.sin(ago / 37)
    earlier = {}
    for name, value in figures.items():
        if name.startswith(("store_seconds", "topics_seconds")) and value > 120:
            earlier[name] = max(0.3, value - ago)
        elif name in ("slot_retained_bytes", "topics_bytes") and value > GIGABYTE:
            earlier[name] = max(2e7, value - ago * 1.31e6)
        else:
            earlier[name] = value * waves
    return earlier


def _judged(config: Config, record: PipelineStatus) -> PipelineStatus:
    """The status with its health; `still_seconds` without progress does not count for an idle or unreachable store."""
    judge = HealthRules(config)
    slot = judge.slot(record.slot, is_known=True, has_begun=True)
    topics = judge.topics(record.topics, slot, is_reading=slot.active, still_seconds=0.0)
    stores = tuple(
        judge.store(store, topics, still_seconds=0.0, own_seconds=store.seconds if store.records else 0.0)
        for store in record.stores
    )
    return replace(record, source=judge.source(record.source), slot=slot, topics=topics, stores=stores)

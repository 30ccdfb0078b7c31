"""`tailrace lag`: print the lag and the health of every hop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.commands.options import config_option, json_option
from cdc.config import load_config
from cdc.errors import UsageError
from cdc.monitoring.observer import poll_once
from cdc.units import in_bytes, in_time

if TYPE_CHECKING:
    from cdc.monitoring.status_record import Health, PipelineStatus, SlotStatus, StoreStatus, TopicsStatus


@click.command()
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@config_option
@json_option
@click.option("--max-seconds", type=click.FloatRange(min=0), help="Allowed lag, overriding [lag] max_seconds.")
def lag(stores: tuple[str, ...], config_path: Path, as_json: bool, max_seconds: float | None) -> int:
    """Print the lag of the slot, the topics and the STOREs (default: all) behind the source.

    Lag is in bytes of the source's WAL, in records and in seconds. Seconds are the age of the oldest commit that a
    store may not have. They are 0 while no client writes, and grow while a store or capture makes no progress. Exit
    code 1: a hop exceeds the limit of [lag], makes no progress, is down or cannot be measured, or rows are parked.
    """
    config = load_config(config_path)
    for name in stores:
        if name not in config.stores:
            raise UsageError(f"There is no [stores.{name}] in the config.")
    record = poll_once(config, stores or None)
    click.echo(json.dumps(_as_json(record), indent=2) if as_json else "\n".join(_lines(record)))
    return 0 if _is_well(record, config.lag.max_seconds if max_seconds is None else max_seconds) else 1


def _is_well(record: PipelineStatus, max_seconds: float) -> bool:
    """Return whether every hop is healthy and within the limit. A store that is not built yet has no lag: not well."""
    ages = [record.topics.seconds, *(store.seconds for store in record.stores)]
    return all(age is not None and age <= max_seconds for age in ages) and all(
        health.is_good for health in record.hops.values()
    )


def _as_json(record: PipelineStatus) -> dict[str, Any]:
    plain = record.as_json()
    for store in plain["stores"]:
        store["problem"] = store["problem"] or (None if store["lsn"] is not None else "nothing is served yet")
    return {"source_lsn": plain["source"]["lsn"], "topics_lsn": plain["topics"]["lsn"], **plain}


def _lines(record: PipelineStatus) -> list[str]:
    source = f"at {record.source.lsn}" if record.source.lsn is not None else "does not answer"
    return [
        f"source: {source}{_said(record.source.health)}",
        f"slot: {_slot(record.slot) if record.source.problem is None else 'unknown'}{_said(record.slot.health)}",
        f"topics: {_topics(record.topics)}{_said(record.topics.health)}",
        *(f"{store.name}: {_store(store)}{_said(store.health)}" for store in record.stores),
    ]


def _slot(slot: SlotStatus) -> str:
    if not slot.exists or slot.retained_bytes is None:
        return "none" if not slot.exists else f"{slot.wal_status}"
    left = f", {in_bytes(slot.left_bytes)} left" if slot.left_bytes is not None else ", no limit"
    until = f" ({in_time(slot.seconds_left)} at the current rate)" if slot.seconds_left is not None else ""
    return f"holds {in_bytes(slot.retained_bytes)} of WAL{left}{until}"


def _topics(topics: TopicsStatus) -> str:
    if topics.lsn is None:
        return "nothing yet"
    parked = f", {topics.parked:,} parked" if topics.parked else ""
    return f"at {topics.lsn}, {_behind(topics.bytes, topics.seconds)}{parked}"


def _store(store: StoreStatus) -> str:
    if store.lsn is None:
        return "nothing is served yet" if store.problem is None else "unknown"
    parked = f", {store.parked:,} parked" if store.parked else ""
    return f"at {store.lsn}, {store.records or 0:,} records, {_behind(store.bytes, store.seconds)}{parked}"


def _behind(size: int | None, seconds: float | None) -> str:
    of_log = in_bytes(size) if size is not None else "unknown bytes"
    return f"{of_log}, {in_time(seconds) if seconds is not None else 'unknown time'} behind"


def _said(health: Health) -> str:
    if not health.reason:
        return ""
    return f"\n  {health.state.value}: {health.reason}" + (f"\n  {health.remedy}" if health.remedy else "")

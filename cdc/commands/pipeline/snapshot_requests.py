"""`tailrace snapshot --status`, `--pause`, `--resume` and `--cancel`: show and control incremental snapshots."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import click
import orjson

from cdc.config import Config
from cdc.errors import TransientError
from cdc.snapshot.incremental.overview import cancel_snapshots, pause_snapshots, snapshots_overview

_DONE, _NOTHING = 0, 1


def carry_out_request(order: str, config: Config, tables: Collection[str], *, as_json: bool) -> int:
    """Carry out the request `order` and print the result.

    Returns exit code 1 if there was nothing to cancel, or if capture has never been started.
    """
    if order == "cancel":
        return _cancel(config, tables, as_json=as_json)
    if order != "status":
        pause_snapshots(config, paused=order == "pause")
    overview = snapshots_overview(config)
    click.echo(orjson.dumps(overview).decode() if as_json else "\n".join(_lines(overview)))
    return _NOTHING if overview is None else _DONE


def _cancel(config: Config, tables: Collection[str], *, as_json: bool) -> int:
    cancelled = cancel_snapshots(config, tables)
    if not cancelled:
        click.echo(orjson.dumps({"cancelled": []}).decode() if as_json else "No snapshot is running or due.")
        return _NOTHING
    if not tables:
        _give_up_idle(config)
    if as_json:
        click.echo(orjson.dumps({"cancelled": cancelled}).decode())
    else:
        click.echo(f"Cancelled: {', '.join(cancelled)}. Published rows stay; the tables are still incomplete.")
        click.echo("To start the snapshots again: tailrace snapshot --resume (or --table NAME)")
    return _DONE


def _give_up_idle(config: Config) -> None:
    """Record the end of a planned snapshot that no process is working on; otherwise its own process records the end."""
    from spark_jobs.snapshot.incremental import CANCELLED, IncrementalSnapshotDriver  # noqa: PLC0415 - see cdc.commands

    try:
        driver = IncrementalSnapshotDriver(config, watch=lambda _progress: None, stop=threading.Event())
        with driver:
            driver.give_up_planned(CANCELLED)
    except TransientError:
        return  # another process is working on the snapshot, and stops within seconds


def _lines(overview: Mapping[str, Any] | None) -> Iterator[str]:
    if overview is None:
        yield "Capture has not been started yet."
        return
    if overview["paused"]:
        yield "Incremental snapshots are paused. To resume them: tailrace snapshot --resume"
    for copy in overview["snapshots"]:
        yield _snapshot_line(copy)
    for table in overview["incomplete"]:
        cancelled = "; its snapshot was cancelled (tailrace snapshot --resume)" if table.get("cancelled") else ""
        yield f"{table['table']}: incomplete since {table['since']}: {table['reason']}{cancelled}"
    if not overview["incomplete"]:
        yield "Every table is complete."


def _snapshot_line(copy: Mapping[str, Any]) -> str:
    figures = copy["progress"]
    parts = [f"{copy['chunks']} of {copy['total_chunks']} chunks", f"{copy['rows']:,} rows"]
    if figures is not None and copy["state"] == "planned":
        parts.append(f"{figures['rows_per_second']:,.0f} rows/s")
        if figures["seconds_left"]:
            parts.append(f"{figures['seconds_left']:.0f} s left")
    words = {"planned": "running", "open": "about to start"}.get(copy["state"], copy["state"])
    reason = f" ({copy['reason']})" if copy["reason"] else ""
    where = f" where {copy['where']}" if copy["where"] else ""
    kind = "initial" if copy["kind"] == "first" else "incremental"
    return f"{kind} snapshot {copy['id']} of {', '.join(copy['tables'])}{where}: {words}{reason}, {', '.join(parts)}"
